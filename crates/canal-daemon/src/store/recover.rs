//! Recovers the state that the previous daemon left.
//!
//! Invariant: the daemon never repeats a decision that was visible. A hold ends only if its process
//! has certainly ended.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;

use crate::config::file::Config;
use crate::fault_injection::Fault;
use crate::history::followed_requests::Unseen;
use crate::store::lease_store::{LeaseStore, table_of};
use crate::store::previous_journal::{self, PreviousJournal};
use crate::store::table_and_log::{JournalStore, Ledger, Rooms};
use crate::wording::StartError;
use canal_core::{Change, Token, UnixMillis};
use canal_log::journal::{Batch, OpenError};
use canal_log::lease_file::{HeldLease, LeaseLog};
use canal_log::stored_state::{self, Durable};
use canal_protocol::paths::Place;
use canal_sys::clock;
use canal_sys::process::Origin;
use canal_text::shell_word;

/// The recovered state; by default nothing, because an engine keeps the table.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub ledger: Ledger,
    /// Notes for operators.
    pub notes: Vec<String>,
    /// The requests that may have ended while no daemon ran.
    pub unseen: Unseen,
}

/// Recovers the state from the journal, the state file and the lease file.
///
/// # Errors
/// The state cannot be recovered without a loss. The error suggests a remedy.
pub(crate) fn recover(
    place: &Place,
    config: &Config,
    origin: &Origin,
    discard: bool,
) -> anyhow::Result<Recovered> {
    let state_dir = place.state_dir().to_owned();
    let durable = stored_state::read(&state_dir)?;
    let (lease_log, leases) = open_leases(&state_dir)?;
    let has_leases = leases.is_some();
    let leases = leases.unwrap_or_default();
    let opened = previous_journal::open(place, origin, discard)?;
    if opened.torn_bytes > 0 {
        tracing::warn!(bytes = opened.torn_bytes, "the journal ended in the middle of a record");
    }
    let old = PreviousJournal::read(opened, &place.dir, origin)?;
    let goes_on = old.table.is_some();
    let mut table = old.table.unwrap_or_default();
    let was_anew = durable.as_ref().is_some_and(|durable| durable.node.is_anew);
    // The journal of this boot contains all leases; after a reboot, the file of the leases does.
    let is_anew = was_anew || !goes_on && (durable.is_none() || !has_leases);
    // The next token if the tokens assigned before are not known for certain.
    let reserved = durable.as_ref().map_or(Token(0), |durable| durable.reserved_token);
    let floor = (!goes_on).then(|| reserved.max(old.next_token).max(token_by_clock()));
    let mut durable = durable.unwrap_or_else(|| {
        // Those that the lost state file must have contained.
        let mut settings = table.snapshot().settings;
        settings.retain(|key, settings| {
            settings.view.take_if(|view| config.views.get(key) == Some(view));
            !settings.is_default()
        });
        Durable { settings, ..Durable::default() }
    });
    durable.node.is_anew = is_anew;
    if !goes_on {
        table = table_of(&leases, durable.reserved_request)
            .with_context(|| format!("the leases in {}", state_dir.display()))?;
    }
    let kept = JournalStore {
        rooms: Rooms::of_table(&table),
        journal: old.journal,
        state_dir,
        durable,
        origin: origin.clone(),
        dir: place.dir.clone(),
        fault: Fault::from_environment(),
        turn: Batch::default(),
        leases: LeaseStore::new(lease_log, &table),
    };
    let mut ledger = Ledger::new(table, kept);
    if let Some(token) = floor {
        // This comes before the journal is begun, because the next daemon continues with its
        // content even if this daemon is killed right after it began the journal.
        ledger.apply(Change::Floor { token });
    }
    if let Some((table, kept)) = ledger.kept() {
        if old.begins_anew {
            kept.compact(table).with_context(|| journal_of(place))?;
        }
        if floor.is_some() {
            kept.reserve_tokens(table, 0).with_context(|| journal_of(place))?;
            if is_anew && !was_anew {
                kept.change(|_| {}).with_context(|| journal_of(place))?;
            }
        }
    }
    Ok(Recovered { ledger, notes: old.notes, unseen: old.unseen })
}

/// The name of the journal in errors.
pub(crate) fn journal_of(place: &Place) -> String {
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
        let what = "the record of leases ended in the middle of an entry; no client got that lease";
        tracing::warn!(bytes = opened.torn_bytes, "{what}");
    }
    Ok((opened.log, opened.leases))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use canal_core::Revision;
    use canal_log::sim::disk_faults as fault;
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
        recover(place, &config, &Origin::read().unwrap(), false).unwrap()
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
            let origin = Origin::read().unwrap();
            let begin = || recover(&place, &config, &origin, false).is_ok();
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
