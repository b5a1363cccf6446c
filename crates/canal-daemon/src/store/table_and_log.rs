//! The table and its log, kept in step: the embedded journal and the data that must survive a
//! reboot, unless an engine keeps the log.
//!
//! Invariant: the daemon reports an entry only after [`Ledger::commit`] has returned, or after the
//! engine has returned the entry.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::calls::in_flight::Applied;
use crate::config::file::Config;
use crate::fault_injection::Fault;
use crate::store::lease_store::LeaseStore;
use crate::store::node_identity::Node;
use canal_core::{
    Change, ENTRY_VERSION, Entry, HostId, Key, Outcome, RULES_VERSION, Request, RequestId,
    Revision, Setting, Settings, Table, Token, UnixMillis,
};
use canal_log::journal::{self, Batch, Journal, NoRoom};
use canal_log::stored_state::{self, Durable};
use canal_protocol::{ErrorName, Failure};
use canal_sys::clock;
use canal_sys::kernel::random;
use canal_sys::process::Origin;

/// The number of tokens reserved at once. A restart after a crash of the machine skips the unused
/// ones.
const TOKENS_RESERVED_AT_ONCE: u64 = 1 << 16;

/// With fewer reserved tokens left, new requests wait until more tokens are reserved.
const TOKENS_LEFT_MIN: u64 = 1 << 10;

/// With fewer reserved numbers for requests left, more are reserved.
const REQUESTS_LEFT_MIN: u64 = 1 << 10;

/// How many numbers for requests are reserved at once. The first number after a reboot skips the
/// unused ones, so they are few: people type these numbers.
const REQUESTS_RESERVED_AT_ONCE: u64 = 1 << 12;

/// The table, and the embedded journal, which keeps the table's log unless an engine does.
///
/// By default, an engine keeps the log.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub table: Table,
    /// The id of this host in the log. With an engine it is [`NO_HOST`] while this host is not a
    /// member.
    pub host: HostId,
    /// `None` if an engine keeps the log.
    journal: Option<Box<JournalStore>>,
    /// The time of all changes applied before the next [`Self::commit`], once the clock has been
    /// read.
    now: Option<UnixMillis>,
}

/// The only host of an embedded journal. No host of an engine has this id.
pub(crate) const NO_HOST: HostId = HostId(0);

impl Ledger {
    /// A table, and the embedded journal that keeps its log.
    pub(super) fn new(table: Table, journal: JournalStore) -> Self {
        Self { table, journal: Some(Box::new(journal)), ..Self::default() }
    }

    pub(super) fn kept(&mut self) -> Option<(&Table, &mut JournalStore)> {
        self.journal.as_mut().map(|journal| (&self.table, &mut **journal))
    }

    /// Whether this host can propose changes: always with a journal, and as a member with an
    /// engine.
    pub(crate) fn is_member(&self) -> bool {
        self.journal.is_some() || self.host != NO_HOST
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
        if let Some((table, kept)) = self.kept() {
            kept.reserve_tokens(table, TOKENS_LEFT_MIN + table.waiters().len() as u64)
                .and_then(|()| kept.reserve_request(table))
                .map_err(|error| NoRoom { dir: kept.dir.clone(), error })?;
        }
        self.admit_bytes(journal::room_for(request))
    }

    /// Ensures that this many bytes, which belong to no request, can be recorded.
    pub(crate) fn admit_bytes(&mut self, bytes: u64) -> Result<(), NoRoom> {
        let Some((table, kept)) = self.kept() else { return Ok(()) };
        let Err(first) = kept.journal.admit(bytes, kept.rooms.sum) else { return Ok(()) };
        // A compacted file may still have room.
        if kept.commit(table).is_err() || kept.compact(table).is_err() {
            return Err(first);
        }
        kept.journal.admit(bytes, kept.rooms.sum)
    }

    /// The settings that differ from the configuration and the state file, each with its required
    /// value. A size that a user stored by hand overrides the configuration.
    pub(crate) fn settings_to_follow(&self, config: &Config) -> Vec<(Key, Setting)> {
        let Some(kept) = &self.journal else { return Vec::new() };
        let mut wanted = kept.durable.settings.clone();
        for (key, view) in &config.views {
            wanted.entry(key.clone()).or_default().view.get_or_insert(*view);
        }
        for (key, _) in self.table.stored_settings() {
            wanted.entry(key.clone()).or_default();
        }
        let changes = wanted.iter().flat_map(|(key, wanted)| {
            let changes = changes(self.table.settings(key), wanted);
            changes.map(|setting| (key.clone(), setting))
        });
        changes.collect()
    }

    /// Records everything that was applied since the last commit, in one write.
    ///
    /// # Errors
    /// The daemon must not report anything of this turn, and must end.
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        self.now = None;
        self.kept().map_or(Ok(()), |(table, kept)| kept.commit(table))
    }

    /// Whether the next [`Self::commit`] waits for the disk, so that it should contain more
    /// changes.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.leases.waits_for_disk())
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
        self.kept().map_or(Ok(()), |(table, kept)| kept.leases.store(table))
    }

    /// Compacts the journal if that is worthwhile. Called when nothing waits to be recorded.
    pub(crate) fn tidy(&mut self) {
        if let Some((table, kept)) = self.kept()
            && kept.journal.wants_compaction()
        {
            match kept.compact(table) {
                Ok(()) => tracing::debug!("compacted the journal"),
                Err(error) => tracing::warn!(%error, "cannot compact the journal"),
            }
        }
    }

    /// The embedded journal; `None` if an engine keeps the log.
    pub(crate) fn journal(&self) -> Option<&JournalStore> {
        self.journal.as_deref()
    }

    /// Creates the journal's files again if they are missing.
    pub(crate) fn recreate(&mut self) -> io::Result<()> {
        let Some((table, kept)) = self.kept() else { return Ok(()) };
        kept.compact(table)?;
        // These files may be in the same directory.
        kept.leases.write_anew(table)?;
        kept.change(|_| {})
    }

    /// This daemon as a node.
    pub(crate) fn node(&self, longest_ttl: Duration) -> Node {
        self.journal.as_ref().map_or_else(Node::default, |kept| {
            Node::new(&kept.state_dir, kept.durable.node.is_anew, longest_ttl)
        })
    }

    /// The generated name of a machine that has no name. It is created on the first call.
    ///
    /// # Errors
    /// The name was created now and cannot be stored.
    pub(crate) fn machine_name(&mut self) -> io::Result<String> {
        let Some((_, kept)) = self.kept() else { return Ok(String::new()) };
        if let Some(machine) = &kept.durable.node.machine {
            return Ok(machine.clone());
        }
        let machine = format!("{:032x}", random::u128()?);
        kept.change(|durable| durable.node.machine = Some(machine.clone()))?;
        Ok(machine)
    }

    /// Notes durably that this daemon knows all its grants over nodes. From now on the file of the
    /// leases exists: if it is missing at a later start, leases were lost.
    pub(crate) fn settle_node(&mut self) -> io::Result<()> {
        let Some((table, kept)) = self.kept() else { return Ok(()) };
        kept.leases.write_anew(table)?;
        kept.change(|durable| durable.node.is_anew = false)
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

/// The embedded journal, and the data that must survive a reboot.
#[derive(Debug)]
pub(crate) struct JournalStore {
    pub journal: Journal,
    /// The directory of `durable`.
    pub state_dir: PathBuf,
    pub durable: Durable,
    pub origin: Origin,
    pub dir: PathBuf,
    pub fault: Fault,
    /// Applied changes that are not in the journal yet.
    pub turn: Batch,
    pub leases: LeaseStore,
    /// The room that the journal needs for the ends of all holds and waiting requests.
    pub(super) rooms: Rooms,
}

/// The room that requests may still need in the journal.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    each: BTreeMap<RequestId, u64>,
    sum: u64,
}

impl Rooms {
    fn add(&mut self, id: RequestId, request: &Request) {
        let room = journal::room_for(request);
        self.sum += room;
        self.sum -= self.each.insert(id, room).unwrap_or(0);
    }

    /// Adds the room of a request that has none yet, if it waits or holds something.
    fn begin(&mut self, table: &Table, id: RequestId) {
        if !self.each.contains_key(&id)
            && let Some(request) = table.request(id)
        {
            self.add(id, request);
        }
    }

    fn remove(&mut self, id: RequestId) {
        self.sum -= self.each.remove(&id).unwrap_or(0);
    }

    pub(super) fn of_table(table: &Table) -> Self {
        let mut rooms = Self::default();
        table.waiters().for_each(|waiter| rooms.add(waiter.id, &waiter.request));
        table.holds().for_each(|hold| rooms.add(hold.request, &hold.asked));
        rooms
    }
}

/// Keeps the journal in step with a table.
impl JournalStore {
    /// Notes an entry that was applied.
    fn note(&mut self, table: &Table, revision: Revision, entry: &Entry, outcomes: &[Outcome]) {
        let Self { rooms, leases, .. } = self;
        outcomes.iter().for_each(|outcome| match outcome {
            Outcome::Queued { request, .. } => rooms.begin(table, *request),
            Outcome::Granted(granted) => {
                rooms.begin(table, granted.request);
                leases.note(table, granted.token);
            }
            Outcome::ConfirmedAt { was, token, .. } => {
                if let Some(hold) = table.hold(*token) {
                    rooms.add(hold.request, &hold.asked);
                }
                leases.note(table, *was);
                leases.note(table, *token);
            }
            Outcome::Renewed { frame, .. }
                if !matches!(entry.change, Change::Renew { note: None, ttl_ms: None, .. }) =>
            {
                for hold in table.holds_in(*frame) {
                    rooms.add(hold.request, &hold.asked);
                    leases.note(table, hold.token);
                }
            }
            Outcome::Requeued { token, .. } => leases.note(table, *token),
            Outcome::Withdrawn { request } | Outcome::Refused { request, .. } => {
                rooms.remove(*request);
            }
            Outcome::Released { request, token, whole: true, .. } => {
                rooms.remove(*request);
                leases.note(table, *token);
            }
            _ => {}
        });
        self.turn.push(revision, entry, outcomes);
    }

    /// Ensures that at least `ahead` tokens can be assigned without a write to the disk.
    pub(super) fn reserve_tokens(&mut self, table: &Table, ahead: u64) -> io::Result<()> {
        let next = table.globals().next_token.0;
        if next.saturating_add(ahead) <= self.durable.reserved_token.0 {
            return Ok(());
        }
        let reserved = next.saturating_add(ahead).saturating_add(TOKENS_RESERVED_AT_ONCE);
        self.change(|durable| {
            durable.reserved_token = Token(reserved);
            durable.reserved_request = requests_ahead(table);
        })
    }

    /// Ensures that the next request has a number that no request had before or will have after a
    /// reboot.
    pub(super) fn reserve_request(&mut self, table: &Table) -> io::Result<()> {
        // Other requests may be on their way into the log.
        let next = table.revision().0.saturating_add(REQUESTS_LEFT_MIN);
        if next <= self.durable.reserved_request.0 {
            return Ok(());
        }
        self.change(|durable| durable.reserved_request = requests_ahead(table))
    }

    /// Changes the data that must survive a reboot.
    ///
    /// # Errors
    /// The change was not stored, and has not happened.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Durable)) -> io::Result<()> {
        let mut durable = self.durable.clone();
        change(&mut durable);
        stored_state::store(&self.state_dir, &durable)?;
        self.durable = durable;
        Ok(())
    }

    /// Records everything that was applied since the last commit, in one write.
    ///
    /// # Errors
    /// The daemon must not report any of these changes, and must end.
    fn commit(&mut self, table: &Table) -> io::Result<()> {
        if !self.turn.is_empty() {
            self.reserve_tokens(table, 0)?;
            if let Some(written) = self.fault.strikes_after(self.turn.len()) {
                self.turn.truncate(written);
                self.journal.append(&self.turn)?;
                Fault::strike();
            }
            if let Err(error) = self.journal.append(&self.turn) {
                tracing::warn!(%error, "cannot append to the journal; beginning a new one");
                // Another file may be writable.
                self.compact(table).map_err(|_| error)?;
            }
            self.turn.clear();
        }
        // The daemon may report the end of a lease before it is durable. At worst the lease comes
        // back after a crash of the machine, if no lease was granted since: the append that makes a
        // grant durable contains all earlier ends.
        if self.leases.waits_for_disk()
            && let Err(error) = self.leases.store(table)
        {
            tracing::warn!(%error, "cannot make the end or the note of a lease durable yet");
        }
        Ok(())
    }

    /// Continues in a journal that begins with a snapshot of the table, which contains all applied
    /// changes.
    pub(super) fn compact(&mut self, table: &Table) -> io::Result<()> {
        let snapshot = table.snapshot();
        self.journal.compact(&snapshot, &self.origin, RULES_VERSION, self.rooms.sum)?;
        self.turn.clear();
        Ok(())
    }
}

/// The bytes to record a setting of a key, with these numbers of buckets.
pub(crate) fn setting_bytes(key: &Key, numbers: usize) -> u64 {
    // Both appear in the entry and in the snapshot, in the worst case with every character of the
    // key escaped.
    1024 + 4 * key.as_str().len() as u64 + 2 * 21 * numbers as u64
}

/// The bytes to record a renewal of a lease, with this note.
pub(crate) fn renewal_bytes(note: Option<&str>) -> u64 {
    // The note appears in the entry and in the snapshot, in the worst case with every character
    // escaped.
    512 + 4 * note.map_or(0, str::len) as u64
}

/// The largest number of a request to reserve.
fn requests_ahead(table: &Table) -> RequestId {
    RequestId(table.revision().0.saturating_add(REQUESTS_RESERVED_AT_ONCE))
}

/// The changes between two settings of a key.
fn changes(is: &Settings, wanted: &Settings) -> impl Iterator<Item = Setting> {
    let service = |one: &Settings, other: &Settings, out| {
        let numbers: Vec<u64> = one.without.0.difference(&other.without.0).copied().collect();
        (!numbers.is_empty()).then_some(Setting::Service { numbers, out })
    };
    let changes = [
        (is.paused != wanted.paused).then_some(Setting::Paused(wanted.paused)),
        service(is, wanted, false),
        service(wanted, is, true),
        (is.view != wanted.view).then_some(Setting::View(wanted.view)),
    ];
    changes.into_iter().flatten()
}

/// The failure for a client whose request cannot be recorded.
pub(crate) fn disk_full(error: &NoRoom) -> Failure {
    tracing::warn!(%error, "refusing a request");
    Failure::new(ErrorName::DiskFull, error.to_string())
        .hint("make room and try again; no hold is lost")
}
