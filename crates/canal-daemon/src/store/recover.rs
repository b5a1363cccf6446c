//! Recovers the state that the previous daemon left.
//!
//! Invariant: the daemon never repeats a decision that was visible. A hold ends only if its process
//! has certainly ended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::config::file::Config;
use crate::fault::Fault;
use crate::history::requests::Unseen;
use crate::processes::descendants::Children;
use crate::processes::identity::find;
use crate::store::lease_store::{LeaseStore, table_of};
use crate::store::ledger::{JournalStore, Ledger, Rooms};
use crate::store::previous_journal::{self, PreviousJournal};
use crate::waiters::leases::is_collecting;
use crate::wording::StartError;
use canal_core::{Change, FrameId, Outcome, Owner, ProcessId, Release, Table, Token, UnixMillis};
use canal_log::journal::{Batch, OpenError};
use canal_log::leases::{HeldLease, LeaseLog};
use canal_log::state::{self, Durable};
use canal_protocol::paths::Place;
use canal_sys::clock;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::{Found, Origin};
use canal_text::shell_word;

/// The recovered state.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub ledger: Ledger,
    pub origin: Origin,
    pub children: Children,
    /// The owners that were found again, if they hold something or their frame encloses another
    /// frame.
    pub found: Vec<(FrameId, Pidfd)>,
    /// Frames whose process may or may not live.
    pub unverified: BTreeSet<FrameId>,
    /// Notes for operators.
    pub notes: Vec<String>,
    /// The requests that ended while no daemon ran.
    pub unseen: Unseen,
    /// The directory of the state; `None` if an engine keeps the table.
    pub state_dir: Option<PathBuf>,
    /// Whether leases over nodes may exist that the state does not contain.
    pub is_anew: bool,
}

/// Recovers the state from the journal, the state file and the lease file.
///
/// # Errors
/// The state cannot be recovered without a loss. The error suggests a remedy.
pub(crate) fn recover(place: &Place, config: &Config, discard: bool) -> anyhow::Result<Recovered> {
    let origin = Origin::read()?;
    let state_dir = place.state_dir().to_owned();
    let durable = state::read(&state_dir)?;
    let (lease_log, leases) = open_leases(&state_dir)?;
    let has_leases = leases.is_some();
    let leases = leases.unwrap_or_default();
    let opened = previous_journal::open(place, &origin, discard)?;
    if opened.torn_bytes > 0 {
        tracing::warn!(bytes = opened.torn_bytes, "the journal ended in the middle of a record");
    }
    let mut old = PreviousJournal::read(opened, &place.dir, &origin)?;
    let goes_on = old.goes_on;
    let was_anew = durable.as_ref().is_some_and(|durable| durable.node.is_anew);
    // The journal of this boot contains all leases; after a reboot, the file of the leases does.
    let is_anew = was_anew || !goes_on && (durable.is_none() || !has_leases);
    // The next token if the tokens assigned before are not known for certain.
    let reserved = durable.as_ref().map_or(Token(0), |durable| durable.reserved_token);
    let floor = (!goes_on).then(|| reserved.max(old.next_token).max(token_by_clock()));
    let mut durable = durable.unwrap_or_else(|| {
        // Those that the lost state file must have contained.
        let mut settings = old.table.snapshot().settings;
        settings.retain(|key, settings| {
            settings.view.take_if(|view| config.views.get(key) == Some(view));
            !settings.is_default()
        });
        Durable { settings, ..Durable::default() }
    });
    durable.node.is_anew = is_anew;
    if !goes_on {
        old.table = table_of(&leases, durable.reserved_request)
            .with_context(|| format!("the leases in {}", state_dir.display()))?;
    }
    let kept = JournalStore {
        rooms: Rooms::of_table(&old.table),
        journal: old.journal,
        state_dir: state_dir.clone(),
        durable,
        origin: origin.clone(),
        dir: place.dir.clone(),
        fault: Fault::from_environment(),
        turn: Batch::default(),
        leases: LeaseStore::new(lease_log, &old.table),
    };
    let mut ledger = Ledger::new(old.table, Some(kept));
    if let Some(token) = floor {
        // This comes before the journal is begun, because the next daemon continues with its
        // content even if this daemon is killed right after it began the journal.
        ledger.apply(Change::Floor { token });
    }
    if old.begins_anew {
        ledger.compact().with_context(|| journal_of(place))?;
    }
    if floor.is_some()
        && let Some((table, kept)) = ledger.kept()
    {
        kept.reserve_tokens(table, 0).with_context(|| journal_of(place))?;
        if is_anew && !was_anew {
            kept.change(|_| {}).with_context(|| journal_of(place))?;
        }
    }
    let mut recovered = Recovered {
        ledger,
        notes: old.notes,
        unseen: old.unseen,
        state_dir: Some(state_dir),
        is_anew,
        ..Recovered::of_engine(&place.dir, origin)
    };
    recovered.take_up();
    recovered.follow(config);
    recovered.ledger.commit().with_context(|| journal_of(place))?;
    if goes_on {
        recovered.unseen.leave_out(&recovered.ledger.table);
    }
    Ok(recovered)
}

fn journal_of(place: &Place) -> String {
    format!("the journal in {}", place.dir.display())
}

/// A token greater than all tokens ever assigned before, by the wall clock.
pub(crate) fn token_by_clock() -> Token {
    Token::by_clock(UnixMillis(clock::unix_ms()))
}

/// Reads the leases that survived a reboot; `None` if there is no lease file.
fn open_leases(dir: &Path) -> anyhow::Result<(LeaseLog, Option<BTreeMap<Token, HeldLease>>)> {
    let opened = LeaseLog::open(dir).map_err(|error| match &error {
        OpenError::Damaged { path, .. } | OpenError::Newer { path, .. } => {
            let aside = shell_word::quoted(&format!("{}.damaged", path.display()));
            let path = shell_word::of_path(path);
            let hint = format!(
                "to set it aside, run `mv {path} {aside}`; leases from before the last boot are \
                 then lost, but newer ones are also in the journal"
            );
            StartError { what: error.to_string(), hint: hint.into() }.into()
        }
        OpenError::Io { .. } => anyhow::Error::from(error),
    })?;
    if opened.torn_bytes > 0 {
        let bytes = opened.torn_bytes;
        tracing::warn!(
            bytes,
            "the record of leases ended in the middle of an entry; no client got that lease"
        );
    }
    Ok((opened.log, opened.leases))
}

impl Recovered {
    /// Nothing: an engine keeps the table.
    pub(crate) fn of_engine(dir: &Path, origin: Origin) -> Self {
        Self {
            ledger: Ledger::new(Table::default(), None),
            origin,
            children: Children::new(dir),
            found: Vec::new(),
            unverified: BTreeSet::new(),
            notes: Vec::new(),
            unseen: Unseen::default(),
            state_dir: None,
            is_anew: false,
        }
    }

    /// Searches for the recorded processes.
    fn take_up(&mut self) {
        let ledger = &mut self.ledger;
        if ledger.table.holds().len() + ledger.table.waiters().len() == 0 {
            self.children.sweep();
            return;
        }
        ledger.apply(Change::Detach { host: ledger.host });
        // Their connections ended with the previous daemon.
        let collecting = ledger.table.holds().filter(|hold| is_collecting(hold));
        let collecting: Vec<_> = collecting.map(|hold| hold.request).collect();
        for request in collecting {
            ledger.apply(Change::Withdraw { request });
        }
        let frames: Vec<_> = ledger.table.frames().cloned().collect();
        let enclosing: BTreeSet<_> = frames.iter().filter_map(|frame| frame.parent).collect();
        for frame in frames.into_iter().filter(|frame| !frame.ended) {
            if let Owner::Process(process) = frame.owner {
                self.look_for(frame.id, process, enclosing.contains(&frame.id));
            }
        }
        self.take_up_children();
        let table = &self.ledger.table;
        tracing::info!(
            holds = table.holds().len(),
            waiting = table.waiters().len(),
            unverified = self.unverified.len(),
            "took over the previous daemon's holds and waiters"
        );
    }

    fn look_for(&mut self, frame: FrameId, process: ProcessId, encloses: bool) {
        match find(process) {
            Found::Same(pidfd) if !pidfd.has_ended() => {
                // A process that only waits is identified by its connection when it reconnects.
                if encloses || self.ledger.table.holds_in(frame).next().is_some() {
                    self.found.push((frame, pidfd));
                }
            }
            Found::Same(_) | Found::Gone => {
                tracing::info!(pid = process.pid, session = %format_args!("s{frame}"),
                               "a process ended while no daemon was running");
                self.ledger.apply(Change::End { frame });
            }
            Found::Unknown(error) => {
                let pid = process.pid;
                tracing::warn!(pid, %error, "cannot determine whether it is still running");
                self.unverified.insert(frame);
            }
        }
    }

    /// Opens the FIFOs of the holds that are kept for descendants, and ends the holds without
    /// remaining descendants.
    fn take_up_children(&mut self) {
        let holds = self.ledger.table.holds().filter(|hold| hold.asked.children);
        let holds: Vec<_> = holds.map(|hold| (hold.token, hold.asked.tag, hold.orphaned)).collect();
        for (token, tag, orphaned) in holds {
            if let Err(error) = self.children.take_over(token, tag) {
                tracing::warn!(%error, token = token.0, "cannot open its FIFO");
                continue;
            }
            if orphaned && !self.children.has_writers(token) {
                let release = Release::Hold { token, forced: false };
                self.ledger.apply(Change::Release(release));
                self.children.forget(token);
            }
        }
        self.children.sweep();
    }

    /// Changes stored sizes, pauses and policy to those of the state file and the configuration. A
    /// size that a user stored by hand overrides the configuration.
    fn follow(&mut self, config: &Config) {
        let ledger = &mut self.ledger;
        for (key, setting) in ledger.settings_to_follow(config) {
            let applied = ledger.apply(Change::Set { key: key.clone(), setting });
            match applied.outcomes.first() {
                Some(Outcome::ResizeRefused { in_use }) => {
                    tracing::warn!(%key, "its configured size does not apply: the key is in use as \
                                          another kind, {in_use}");
                }
                Some(Outcome::ResizeRefusedOverNodes) => {
                    tracing::warn!(%key, "its configured size does not apply: it is in use with a \
                                          majority of nodes");
                }
                _ => {}
            }
        }
        let bypass_max = config.policy.bypass_max.unwrap_or(canal_core::BYPASS_MAX_DEFAULT);
        if ledger.table.globals().bypass_max != bypass_max {
            ledger.apply(Change::Policy { bypass_max });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use canal_core::{Key, Revision, Setting, View};
    use canal_log::sim::disk as fault;
    use canal_protocol::paths::{Rule, Stores};

    fn place(dir: &Path) -> Place {
        Place {
            socket: dir.join("canal.sock"),
            dir: dir.to_owned(),
            rule: Rule::PerUser,
            uid: 0.into(),
            stores: stores(dir.join("state"), dir).into(),
        }
    }

    fn stores(state_dir: PathBuf, dir: &Path) -> Stores {
        Stores { state_dir, config: vec![dir.join("canal.toml")] }
    }

    fn recovered(place: &Place, config: &str) -> Recovered {
        std::fs::write(&place.stores().config[0], config).unwrap();
        let config = Config::read(&place.stores().config).unwrap();
        recover(place, &config, false).unwrap()
    }

    fn views(recovered: &Recovered) -> Vec<String> {
        let stored = recovered.ledger.table.stored_settings();
        stored.map(|(key, settings)| format!("{key}={}", settings.view.unwrap())).collect()
    }

    #[test]
    fn views_follow_the_configuration_but_for_those_set_by_hand() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let mut first = recovered(&place, "[keys.a]\nslots = 1\n[keys.b]\nslots = 2\n");
        assert_eq!(views(&first), ["a=1", "b=2"]);
        let (key, view) = (Key::new("b").unwrap(), Some(View::Slots { slots: 7 }));
        let setting = Setting::View(view);
        first.ledger.change_durable(|it| it.set(&key, &setting)).unwrap();
        first.ledger.apply(Change::Set { key, setting });
        first.ledger.commit().unwrap();
        drop(first);

        let second = recovered(&place, "[keys.b]\nslots = 3\n[keys.c]\nper = 2\nbuckets = 2\n");
        assert_eq!(views(&second), ["b=7", "c=2x2"], "a is gone, b was set by hand");
        drop(second);
        // A boot empties /tmp.
        std::fs::remove_file(dir.path().join("journal.0")).unwrap();
        std::fs::remove_file(dir.path().join("journal.1")).unwrap();
        assert_eq!(views(&recovered(&place, "")), ["b=7"]);
    }

    #[test]
    fn what_is_out_of_service_survives_a_restart_and_the_loss_of_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let mut first = recovered(&place, "");
        let key = |name| Key::new(name).unwrap();
        for (name, numbers, out) in
            [("a", vec![1, 2], true), ("b", vec![3], true), ("b", vec![3], false)]
        {
            let setting = Setting::Service { numbers, out };
            first.ledger.change_durable(|it| it.set(&key(name), &setting)).unwrap();
        }
        // A table that differs from the state file follows it.
        for (name, numbers) in [("a", vec![2, 7]), ("c", vec![4])] {
            let setting = Setting::Service { numbers, out: true };
            first.ledger.apply(Change::Set { key: key(name), setting });
        }
        first.ledger.commit().unwrap();
        drop(first);
        let without = || {
            let table = recovered(&place, "").ledger.table;
            ["a", "b", "c"].map(|name| table.settings(&key(name)).without.0.clone())
        };
        let expected = [[1, 2].into(), BTreeSet::new(), BTreeSet::new()];
        assert_eq!(without(), expected);
        // A boot empties /tmp.
        std::fs::remove_file(dir.path().join("journal.0")).unwrap();
        std::fs::remove_file(dir.path().join("journal.1")).unwrap();
        assert_eq!(without(), expected);
    }

    #[test]
    fn a_pause_survives_a_restart_and_the_loss_of_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let mut first = recovered(&place, "");
        for (name, paused) in [("a", true), ("b", true), ("b", false), ("c", true)] {
            let key = Key::new(name).unwrap();
            let setting = Setting::Paused(paused);
            first.ledger.change_durable(|it| it.set(&key, &setting)).unwrap();
            first.ledger.apply(Change::Set { key, setting });
        }
        first.ledger.commit().unwrap();
        drop(first);
        let paused = || {
            let table = recovered(&place, "").ledger.table;
            let paused = table.stored_settings().filter(|(_, settings)| settings.paused);
            paused.map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        let names = ["a", "c"].map(|name| Key::new(name).unwrap());
        assert_eq!(paused(), names);
        // A boot empties /tmp.
        std::fs::remove_file(dir.path().join("journal.0")).unwrap();
        std::fs::remove_file(dir.path().join("journal.1")).unwrap();
        assert_eq!(paused(), names);
    }

    #[test]
    fn the_policy_follows_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let first = recovered(&place, "[policy]\nbypass_max = 3\n");
        assert_eq!(first.ledger.table.globals().bypass_max, 3);
        drop(first);
        assert_eq!(
            recovered(&place, "").ledger.table.globals().bypass_max,
            canal_core::BYPASS_MAX_DEFAULT
        );
    }

    #[test]
    fn tokens_go_on_where_they_were_and_never_back() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let first = recovered(&place, "").ledger.table.globals().next_token;
        assert!(first >= Token(1_700_000_000 << 20));
        assert_eq!(
            recovered(&place, "").ledger.table.globals().next_token,
            first,
            "nothing was lost"
        );
        std::fs::remove_file(dir.path().join("journal.0")).unwrap();
        std::fs::remove_file(dir.path().join("journal.1")).unwrap();
        assert!(
            recovered(&place, "").ledger.table.globals().next_token > first,
            "grants may be lost"
        );
    }

    #[test]
    fn a_request_never_gets_the_number_of_one_before_a_reboot() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let mut last = Revision(0);
        for _ in 0..3 {
            let mut ledger = recovered(&place, "").ledger;
            let revision = ledger.table.revision();
            assert!(revision > last, "{revision:?} after {last:?}");
            // The daemon does this before each request. Others may be on their way into the log.
            let (table, kept) = ledger.kept().unwrap();
            kept.reserve_request(table).unwrap();
            last = Revision(revision.0 + 1000);
            std::fs::remove_file(dir.path().join("journal.0")).unwrap();
            std::fs::remove_file(dir.path().join("journal.1")).unwrap();
        }
    }

    #[test]
    fn tokens_go_on_although_a_daemon_is_killed_while_it_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let first = recovered(&place, "").ledger.table.globals().next_token;
        let config = Config::read(&place.stores().config).unwrap();
        for budget in 1.. {
            for name in ["journal.0", "journal.1"] {
                let _ = std::fs::remove_file(dir.path().join(name));
            }
            let begin = || recover(&place, &config, false).is_ok();
            let (begun, was_stopped) = fault::after(budget, begin);
            assert_eq!(begun, !was_stopped);
            let next = recovered(&place, "").ledger.table.globals().next_token;
            assert!(next > first, "{next} after a kill in place {budget}");
            if !was_stopped {
                assert!(budget > 100, "it was stopped in {budget} places only");
                return;
            }
        }
    }
}
