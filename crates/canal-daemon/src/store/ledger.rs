//! The table and its log, kept in step.
//!
//! Invariant: the daemon reports an entry only after [`Ledger::commit`] has returned, or after the
//! engine has returned the entry.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use crate::calls::in_flight::Applied;
use crate::config::file::Config;
use crate::host::Ticket;
use crate::store::journal_store::JournalStore;
use canal_core::{
    Change, ENTRY_VERSION, Entry, HostId, Key, Request, Revision, StoredView, Table, Token,
    UnixMillis, View,
};
use canal_log::journal::NoRoom;
use canal_log::state::Durable;
use canal_protocol::{ErrorName, Failure};
use canal_sys::clock;

/// The table, and the embedded journal, which keeps the table's log unless an engine does.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub table: Table,
    /// The id of this host in the log. With an engine it is [`NO_HOST`] while this host is not a
    /// member.
    pub host: HostId,
    /// `None` if an engine keeps the log.
    journal: Option<Box<JournalStore>>,
    /// The changes that the embedded journal returns next.
    proposed: VecDeque<(Ticket, Change)>,
    /// The ticket of the next change.
    next_ticket: Ticket,
    /// The time of all changes applied before the next [`Self::commit`], once the clock has been
    /// read.
    now: Option<UnixMillis>,
}

/// The only host of an embedded journal. No host of an engine has this id.
pub(crate) const NO_HOST: HostId = HostId(0);

impl Ledger {
    /// A table and the embedded journal that keeps its log.
    pub(crate) fn of_journal(table: Table, journal: JournalStore) -> Self {
        Self { journal: Some(Box::new(journal)), ..Self::of(table) }
    }

    /// An empty table, which follows the log that an engine keeps.
    pub(crate) fn of_engine() -> Self {
        Self::of(Table::default())
    }

    fn of(table: Table) -> Self {
        let (proposed, next_ticket) = (VecDeque::new(), Ticket(0));
        Self { table, host: NO_HOST, journal: None, proposed, next_ticket, now: None }
    }

    pub(super) fn kept(&mut self) -> Option<(&Table, &mut JournalStore)> {
        self.journal.as_mut().map(|journal| (&self.table, &mut **journal))
    }

    /// Whether this host can propose changes: always with a journal, and as a member with an
    /// engine.
    pub(crate) fn is_member(&self) -> bool {
        self.journal.is_some() || self.host != NO_HOST
    }

    /// Proposes a change for the embedded journal.
    pub(crate) fn propose(&mut self, change: Change) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket.0 += 1;
        self.proposed.push_back((ticket, change));
        ticket
    }

    /// The next change that was proposed for the embedded journal.
    pub(crate) fn next_proposed(&mut self) -> Option<(Ticket, Change)> {
        self.proposed.pop_front()
    }

    /// Whether a change was proposed for the embedded journal and is not applied yet.
    pub(crate) fn has_proposed(&self) -> bool {
        !self.proposed.is_empty()
    }

    /// The next entry of the embedded journal, and its position there.
    pub(crate) fn next_entry(&mut self, change: Change) -> (Revision, Entry) {
        let at = *self.now.get_or_insert_with(|| UnixMillis(clock::unix_ms()));
        let entry = Entry { version: ENTRY_VERSION, at, change };
        (Revision(self.table.revision().0 + 1), entry)
    }

    /// Applies the next entry of the log. The daemon must not report it before [`Self::commit`].
    pub(crate) fn apply_entry(&mut self, revision: Revision, entry: &Entry) -> Applied {
        // A release is one outcome, and the end of its frame is another.
        let mut outcomes = Vec::with_capacity(2);
        self.table.apply(revision, entry, &mut outcomes);
        if let Some((table, kept)) = self.kept() {
            kept.note(table, revision, entry, &outcomes);
        }
        Applied { revision, outcomes }
    }

    /// Applies the next change of the embedded journal.
    pub(crate) fn apply(&mut self, change: Change) -> Applied {
        let (revision, entry) = self.next_entry(change);
        self.apply_entry(revision, &entry)
    }

    /// Ensures that a new request and all its consequences can be recorded.
    pub(crate) fn admit(&mut self, request: &Request) -> Result<(), NoRoom> {
        self.kept().map_or(Ok(()), |(table, kept)| kept.admit(table, request))
    }

    /// Ensures that this many bytes, which belong to no request, can be recorded.
    pub(crate) fn admit_bytes(&mut self, bytes: u64) -> Result<(), NoRoom> {
        self.kept().map_or(Ok(()), |(table, kept)| kept.admit_bytes(table, bytes))
    }

    /// The stored sizes that differ from the configuration and the state file, each with its
    /// required value. A size that a user stored by hand overrides the configuration.
    pub(crate) fn views_to_follow(&self, config: &Config) -> Vec<(Key, Option<View>)> {
        let mut wanted = config.views.clone();
        if let Some(kept) = &self.journal {
            let by_hand = kept.durable.views.iter();
            wanted.extend(by_hand.map(|stored| (stored.key.clone(), stored.view)));
        }
        let stored = stored_views(&self.table);
        let unwanted = stored.iter().filter(|stored| !wanted.contains_key(&stored.key));
        let forgotten = unwanted.map(|stored| (stored.key.clone(), None));
        let changed = wanted.iter().filter(|(key, view)| self.table.stored(key) != Some(**view));
        let changed = changed.map(|(key, view)| (key.clone(), Some(*view)));
        forgotten.chain(changed).collect()
    }

    /// Whether a user stored the size of a key, other than in the configuration.
    pub(crate) fn is_stored_by_hand(&self, key: &Key) -> bool {
        let durable = self.journal.as_ref().map(|kept| &kept.durable);
        durable.is_some_and(|durable| durable.views.iter().any(|stored| stored.key == *key))
    }

    /// Records everything that was applied since the last commit, in one write.
    ///
    /// # Errors
    /// The daemon must not report anything of this turn, and must end.
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        debug_assert!(!self.has_proposed(), "a change was proposed and not followed");
        self.now = None;
        self.kept().map_or(Ok(()), |(table, kept)| kept.commit(table))
    }

    /// Whether the next [`Self::commit`] waits for the disk, so that it should contain more
    /// changes.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.waits_for_disk())
    }

    /// Whether this is the token of a lease that is not durable yet.
    pub(crate) fn is_untold_lease(&self, token: Token) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.leases.is_untold(token))
    }

    /// Makes the leases that hold something now durable, and no others.
    ///
    /// # Errors
    /// Names the file that cannot be written.
    pub(crate) fn keep_leases(&mut self) -> io::Result<()> {
        self.kept().map_or(Ok(()), |(table, kept)| kept.keep_leases(table))
    }

    /// Compacts the journal if that is worthwhile. Called when nothing waits to be recorded.
    pub(crate) fn tidy(&mut self) {
        if let Some((table, kept)) = self.kept() {
            kept.tidy(table);
        }
    }

    /// Continues in a journal that begins with a snapshot of the table.
    pub(crate) fn compact(&mut self) -> io::Result<()> {
        self.kept().map_or(Ok(()), |(table, kept)| kept.compact(table))
    }

    /// The directory of the data that survives a reboot; `None` if an engine keeps the log.
    pub(crate) fn state_dir(&self) -> Option<&Path> {
        self.journal.as_ref().map(|journal| journal.state.dir())
    }

    /// How many bytes of the journal are in use; `None` if an engine keeps the log.
    pub(crate) fn journal_bytes(&self) -> Option<u64> {
        self.journal.as_ref().map(|journal| journal.journal.bytes())
    }

    /// Whether files of the journal were removed.
    pub(crate) fn vanished(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.journal.vanished())
    }

    /// Creates the journal's files again if they are missing.
    pub(crate) fn recreate(&mut self) -> io::Result<()> {
        self.kept().map_or(Ok(()), |(table, kept)| kept.recreate(table))
    }

    /// The generated name of a machine that has no name.
    ///
    /// # Errors
    /// The name was created now and cannot be stored.
    pub(crate) fn machine_name(&mut self) -> io::Result<String> {
        self.kept().map_or(Ok(String::new()), |(_, kept)| kept.machine_name())
    }

    /// Notes durably that this daemon knows all its grants over nodes.
    pub(crate) fn settle_node(&mut self) -> io::Result<()> {
        self.kept().map_or(Ok(()), |(table, kept)| kept.settle_node(table))
    }

    /// Changes the data that survives a reboot, if the embedded journal keeps the log: an engine
    /// keeps all settings in its log.
    ///
    /// # Errors
    /// The change was not stored, and has not happened.
    pub(crate) fn change_durable(&mut self, change: impl FnOnce(&mut Durable)) -> io::Result<()> {
        self.kept().map_or(Ok(()), |(_, kept)| kept.change(change))
    }
}

/// The stored sizes of a table.
pub(crate) fn stored_views(table: &Table) -> Vec<StoredView> {
    let views = table.keys(None).filter_map(|key| {
        let view = table.stored(key)?;
        Some(StoredView { key: key.clone(), view })
    });
    views.collect()
}

/// The failure for a client whose request cannot be recorded.
pub(crate) fn disk_full(error: &NoRoom) -> Failure {
    tracing::warn!(%error, "refusing a request");
    Failure::new(ErrorName::DiskFull, error.to_string())
        .hint("make room and try again; no hold is lost")
}
