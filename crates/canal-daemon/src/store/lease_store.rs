//! The leases, the only part of a table that survives a reboot.
//!
//! Invariant: a lease that a client received is durable until it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use canal_core::{FrameId, Globals, HoldState, RequestId, Revision, Snapshot, Table, Token};
use canal_log::lease_file::{Changes, HeldLease, LeaseLog};
use canal_sys::clock;

/// The file of a table's leases, and the changes that are not durable yet.
#[derive(Debug)]
pub(crate) struct LeaseStore {
    log: LeaseLog,
    /// The tokens of leases whose state in the file is another one than in the table: they are not
    /// there yet, have another note or TTL there, or no longer hold anything.
    unstored: BTreeSet<Token>,
    /// Set after a failed write: the daemon does not write ends and notes of leases again before
    /// this time.
    again_at: Option<Instant>,
}

/// How soon the daemon tries again to make the ends of leases durable.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl LeaseStore {
    /// The leases of a table.
    pub(crate) fn new(log: LeaseLog, table: &Table) -> Self {
        let ended = log.tokens().filter(|token| !is_lease(table, *token));
        let unstored = ended.chain(lease_tokens(table).filter(|token| !log.has(*token)));
        Self { unstored: unstored.collect(), log, again_at: None }
    }

    /// Notes that the hold of this token has begun, changed or ended in the table. Does nothing
    /// unless the hold belongs to a lease.
    pub(crate) fn note(&mut self, table: &Table, token: Token) {
        if self.log.has(token) || is_lease(table, token) {
            self.unstored.insert(token);
        } else {
            self.unstored.remove(&token);
        }
    }

    /// Whether the lease of a hold is not durable yet.
    pub(crate) fn is_untold(&self, token: Token) -> bool {
        self.unstored.contains(&token) && !self.log.has(token)
    }

    /// Whether a grant waits for the disk, or an end or a note is due for a retry.
    pub(crate) fn waits_for_disk(&self) -> bool {
        let put_off = self.again_at.is_some_and(|at| at > clock::now());
        self.unstored.iter().any(|token| !put_off || self.is_untold(*token))
    }

    /// Makes all changes durable, in one append.
    ///
    /// # Errors
    /// Names the file. The daemon must not report new grants then.
    pub(crate) fn store(&mut self, table: &Table) -> io::Result<()> {
        if self.unstored.is_empty() {
            return Ok(());
        }
        let (held, ended): (Vec<_>, Vec<_>) =
            self.unstored.iter().copied().partition(|token| is_lease(table, *token));
        let held = held.into_iter().filter_map(|token| keep(table, token)).collect();
        let stored = self.log.store(Changes { ended, held }, || all(table));
        self.stored(stored)
    }

    /// Rewrites the file with all leases.
    ///
    /// # Errors
    /// Names the file.
    pub(crate) fn write_anew(&mut self, table: &Table) -> io::Result<()> {
        let stored = self.log.write_anew(all(table));
        self.stored(stored)
    }

    fn stored(&mut self, stored: io::Result<()>) -> io::Result<()> {
        match stored {
            Ok(()) => {
                self.unstored.clear();
                self.again_at = None;
            }
            Err(_) => self.again_at = Some(clock::now() + AGAIN_AFTER),
        }
        stored
    }
}

/// The stored form of the lease with this token.
fn keep(table: &Table, token: Token) -> Option<HeldLease> {
    let mut hold = table.hold(token)?.clone();
    let frame = table.frame(hold.frame)?.clone();
    // After a reboot no client remains that could confirm the lease, and the daemon cannot know
    // whether the client received it. So it keeps the lease for its TTL.
    hold.provisional = false;
    Arc::make_mut(&mut hold.asked).provisional = false;
    Some(HeldLease { frame, hold })
}

/// Builds a table of leases only: the state after a reboot, or without a journal. New requests get
/// larger numbers than `reserved` and than the requests of these leases.
pub(crate) fn table_of(leases: &BTreeMap<Token, HeldLease>, reserved: RequestId) -> Result<Table> {
    let mut frames: Vec<_> = leases.values().map(|lease| lease.frame.clone()).collect();
    frames.sort_by_key(|frame| frame.id);
    // The enclosing lease may have ended earlier.
    let there: BTreeSet<FrameId> = frames.iter().map(|frame| frame.id).collect();
    for frame in &mut frames {
        frame.parent = frame.parent.filter(|parent| there.contains(parent));
    }
    let holds: Vec<_> = leases.values().map(|lease| lease.hold.clone()).collect();
    let ids = there.iter().map(|frame| frame.0).chain(holds.iter().map(|hold| hold.request.0));
    let revision = Revision(ids.chain([reserved.0]).max().unwrap_or(0));
    let mut globals = Globals { revision, ..Globals::default() };
    let next_token = holds.iter().map(|hold| Token(hold.token.0 + 1)).max();
    globals.next_token = next_token.unwrap_or(globals.next_token);
    Ok(Table::restore(&Snapshot { globals, frames, holds, ..Snapshot::default() })?)
}

/// Whether this is the token of a lease that holds something.
fn is_lease(table: &Table, token: Token) -> bool {
    table.hold(token).is_some_and(is_kept)
}

fn is_kept(hold: &HoldState) -> bool {
    hold.asked.ttl_ms.is_some() && !hold.is_collecting()
}

/// The tokens of a table's leases.
fn lease_tokens(table: &Table) -> impl Iterator<Item = Token> {
    table.holds().filter(|hold| is_kept(hold)).map(|hold| hold.token)
}

fn all(table: &Table) -> Vec<HeldLease> {
    lease_tokens(table).filter_map(|token| keep(table, token)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;
    use crate::config::file::Config;
    use crate::store::recover::{Recovered, recover};
    use canal_core::{
        Ask, Change, Command, HostId, Item, Key, LeaseId, Outcome, Owner, ProcessId, Request, Tag,
        View, Wait,
    };
    use canal_protocol::paths::{Place, Rule, Stores};
    use canal_sys::process::Origin;

    fn recovered(dir: &Path) -> Recovered {
        try_recover(dir).unwrap()
    }

    fn try_recover(dir: &Path) -> Result<Recovered> {
        let place = Place {
            socket: dir.join("canal.sock"),
            dir: dir.to_owned(),
            rule: Rule::PerUser,
            uid: 0.into(),
            stores: Stores { state_dir: dir.join("state"), config: Vec::new() }.into(),
        };
        let config = Config::read(&place.stores().config).unwrap();
        recover(&place, &config, &Origin::read().unwrap(), false)
    }

    fn ask(recovered: &mut Recovered, tag: u128, owner: Owner, items: Vec<Item>) -> Token {
        let ttl_ms = matches!(owner, Owner::Lease(_)).then_some(60_000);
        let request = Request {
            tag: Tag(tag),
            host: HostId(0),
            owner,
            parent: None,
            uid: 0,
            command: Command("x".to_owned()),
            note: None,
            items,
            wait: Wait::No,
            priority: 0,
            max_waiting: None,
            supersede: None,
            max_run_ms: None,
            provisional: true,
            children: false,
            ttl_ms,
            on_lost: Default::default(),
            asker: None,
            over_nodes: None,
            above: None,
        };
        let applied = recovered.ledger.apply(Change::Request(request.into()));
        match &applied.outcomes[..] {
            [Outcome::Granted(granted)] => granted.token,
            other => panic!("{other:?}"),
        }
    }

    fn slot(key: &str, slots: u64) -> Item {
        let view = Some(View::Slots { slots });
        Item { key: Key::new(key).unwrap(), ask: Ask::slots(1, view) }
    }

    fn lease(name: u128) -> Owner {
        Owner::Lease(LeaseId(name))
    }

    /// Ends a daemon as a reboot would: its records belong to an earlier boot.
    fn reboot(mut recovered: Recovered) {
        recovered.ledger.commit().unwrap();
        let (table, kept) = recovered.ledger.kept().unwrap();
        kept.origin.boot_id = "of-an-earlier-start".to_owned();
        kept.compact(table).unwrap();
    }

    #[test]
    fn after_a_reboot_leases_have_their_tokens_and_slots_and_processes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let process = ProcessId { pid: std::process::id(), started: 1, inode: 0 };
        let write = Item { key: Key::new("w").unwrap(), ask: Ask::Write };
        ask(&mut first, 1, Owner::Process(process), vec![slot("gpu", 3)]);
        let one = ask(&mut first, 2, lease(2), vec![slot("gpu", 3), write]);
        let two = ask(&mut first, 3, lease(3), vec![slot("gpu", 3)]);
        first.ledger.apply(Change::Renew {
            lease: LeaseId(2),
            host: HostId(0),
            note: None,
            ttl_ms: None,
        });
        let before = first.ledger.table.snapshot();
        reboot(first);

        let mut second = recovered(dir.path());
        let table = &second.ledger.table;
        let tokens: Vec<Token> = table.holds().map(|hold| hold.token).collect();
        assert_eq!(tokens, [one, two]);
        for hold in table.holds() {
            let old = before.holds.iter().find(|old| old.token == hold.token).unwrap();
            assert_eq!((&hold.items, hold.frame), (&old.items, old.frame));
            assert!(!hold.provisional, "nobody is left to confirm it");
        }
        assert_eq!(
            table.frame(table.lease(LeaseId(2)).unwrap()).unwrap().lease.unwrap().ttl_ms,
            60_000
        );
        assert_eq!(table.effective_view(&Key::new("gpu").unwrap()), Some(View::Slots { slots: 3 }));
        // The slot of the process is free, the other slots are not.
        let next = ask(&mut second, 4, lease(4), vec![slot("gpu", 3)]);
        assert!(next > two);
        let slots = &second.ledger.table.hold(next).unwrap().items[0].slots;
        assert_eq!(slots.iter().collect::<Vec<_>>(), [0]);
        assert!(second.ledger.table.hold(next).unwrap().request.0 > before.globals.revision.0 - 1);
        // A second reboot, with the added lease.
        reboot(second);
        let third = recovered(dir.path());
        assert!(lease_tokens(&third.ledger.table).eq([one, two, next]));
    }

    #[test]
    fn a_lease_that_ended_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let token = ask(&mut first, 1, lease(1), vec![slot("a", 1)]);
        first.ledger.keep_leases().unwrap();
        let frame = first.ledger.table.hold(token).unwrap().frame;
        first.ledger.apply(Change::Expire { frame, renewal: 0 });
        reboot(first);
        assert_eq!(recovered(dir.path()).ledger.table.holds().len(), 0);
    }

    #[test]
    fn after_a_reboot_a_lease_has_the_ttl_of_its_last_renewal() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let token = ask(&mut first, 1, lease(1), vec![slot("a", 1)]);
        first.ledger.keep_leases().unwrap();
        let ttl_ms = Some(7_200_000);
        let (name, host) = (LeaseId(1), HostId(0));
        first.ledger.apply(Change::Renew { lease: name, host, note: None, ttl_ms });
        // The daemon commits this before its reply. It writes nothing else before the power is cut.
        first.ledger.keep_leases().unwrap();
        drop(first);
        for file in ["journal.0", "journal.1"] {
            let _ = std::fs::remove_file(dir.path().join(file));
        }
        let second = recovered(dir.path());
        let table = &second.ledger.table;
        let hold = table.hold(token).unwrap();
        assert_eq!(hold.asked.ttl_ms, ttl_ms);
        assert_eq!(table.frame(hold.frame).unwrap().lease.unwrap().ttl_ms, 7_200_000);
    }

    #[test]
    fn after_a_reboot_a_lease_has_its_last_note_and_an_ended_one_stays_ended() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let [kept, ended] = [1, 2]
            .map(|name| ask(&mut first, name, lease(name), vec![slot(&format!("k{name}"), 1)]));
        first.ledger.keep_leases().unwrap();
        for name in [1, 2] {
            let (lease, note) = (LeaseId(name), Some("step 2".into()));
            first.ledger.apply(Change::Renew { lease, host: HostId(0), note, ttl_ms: None });
        }
        let frame = first.ledger.table.hold(ended).unwrap().frame;
        first.ledger.apply(Change::Expire { frame, renewal: 1 });
        reboot(first);
        let second = recovered(dir.path());
        assert!(lease_tokens(&second.ledger.table).eq([kept]));
        let note = second.ledger.table.hold(kept).unwrap().asked.note.as_deref();
        assert_eq!(note, Some("step 2"));
    }

    #[test]
    fn within_one_boot_the_journal_wins_over_the_lease_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let kept = ask(&mut first, 1, lease(1), vec![slot("a", 1)]);
        let untold = ask(&mut first, 2, lease(2), vec![slot("b", 1)]);
        first.ledger.keep_leases().unwrap();
        // The daemon dies before the second lease is in the journal.
        let turn = &mut first.ledger.kept().unwrap().1.turn;
        turn.truncate(turn.len() - 1);
        first.ledger.commit().unwrap();
        drop(first);
        let mut second = recovered(dir.path());
        assert!(second.ledger.table.hold(kept).is_some());
        assert!(second.ledger.table.hold(untold).is_none());
        // The file of the leases then follows the journal.
        second.ledger.commit().unwrap();
        assert_eq!(stored(dir.path()), [kept]);
    }

    /// The tokens of the leases that survive a reboot.
    fn stored(dir: &Path) -> Vec<Token> {
        let opened = LeaseLog::open(&dir.join("state")).unwrap();
        opened.leases.unwrap_or_default().into_keys().collect()
    }

    #[test]
    fn a_damaged_lease_file_is_reported_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        for n in 1..4 {
            ask(&mut first, n, lease(n), vec![slot(&format!("k{n}"), 1)]);
            first.ledger.keep_leases().unwrap();
        }
        let all: Vec<Token> = lease_tokens(&first.ledger.table).collect();
        reboot(first);
        let path = dir.path().join("state/leases.log");
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = try_recover(dir.path()).unwrap_err();
        let said = error.to_string();
        let begin = format!("{} is damaged at byte ", path.display());
        assert!(said.starts_with(&begin), "{said}");
        let hint = &error.downcast_ref::<crate::StartError>().unwrap().hint;
        let quoted = canal_text::shell_word::of_path(&path);
        let aside = canal_text::shell_word::of_path(&path.with_extension("log.damaged"));
        assert!(hint.contains(&format!("mv {quoted} {aside}")), "{hint}");
        // The leases are recovered once the damage is repaired.
        bytes[middle] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(lease_tokens(&recovered(dir.path()).ledger.table).eq(all));
    }

    #[test]
    fn one_more_lease_costs_as_much_with_ten_thousand_as_with_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        for n in 0..10_000 {
            ask(&mut first, n, lease(n), vec![slot(&format!("k{n}"), 1)]);
        }
        first.ledger.keep_leases().unwrap();
        first.ledger.commit().unwrap();
        let files = || {
            let entries = std::fs::read_dir(dir.path().join("state")).unwrap();
            let files = entries.map(|entry| entry.unwrap().metadata().unwrap());
            files.map(|it| (it.ino(), it.len())).collect::<BTreeMap<_, _>>()
        };
        let before = files();
        let one = ask(&mut first, 10_000, lease(10_000), vec![slot("one-more", 1)]);
        first.ledger.keep_leases().unwrap();
        let after = files();
        assert!(after.keys().eq(before.keys()), "a file was replaced");
        let grown = after.values().sum::<u64>() - before.values().sum::<u64>();
        assert!((1..2048).contains(&grown), "{grown} bytes were written");
        assert_eq!(stored(dir.path()).last(), Some(&one));
    }

    #[test]
    fn what_one_turn_grants_is_made_durable_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let one = ask(&mut first, 1, lease(1), vec![slot("a", 9)]);
        first.ledger.keep_leases().unwrap();
        let two = ask(&mut first, 2, lease(2), vec![slot("a", 9)]);
        let three = ask(&mut first, 3, lease(3), vec![slot("a", 9)]);
        let is_untold = |first: &Recovered, token| first.ledger.is_untold_lease(token);
        assert!(!is_untold(&first, one) && is_untold(&first, two) && is_untold(&first, three));
        assert_eq!(stored(dir.path()), [one]);
        first.ledger.keep_leases().unwrap();
        assert!(!is_untold(&first, two) && !is_untold(&first, three));
        assert_eq!(stored(dir.path()), [one, two, three]);
        // A lease that was revoked before the client received it is never written to the file.
        let four = ask(&mut first, 4, lease(4), vec![slot("a", 9)]);
        let request = first.ledger.table.hold(four).unwrap().request;
        first.ledger.apply(Change::Withdraw { request });
        assert!(!first.ledger.waits_for_disk());
    }

    #[test]
    fn contradicting_leases_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let token = ask(&mut first, 1, lease(1), vec![slot("a", 1)]);
        let held = keep(&first.ledger.table, token).unwrap();
        let mut leases = BTreeMap::from([(token, held.clone())]);
        assert!(table_of(&leases, RequestId(0)).is_ok());
        let frame = canal_core::FrameState { id: FrameId(held.frame.id.0 + 1), ..held.frame };
        leases.insert(Token(token.0 + 1), HeldLease { frame, ..held });
        assert!(table_of(&leases, RequestId(0)).is_err());
    }
}
