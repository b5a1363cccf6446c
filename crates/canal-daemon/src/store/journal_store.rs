//! The embedded journal and the data that must survive a reboot, kept in step with the table.
//!
//! Invariant: the daemon reports a change only after [`JournalStore::commit`] has returned.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use crate::fault::Fault;
use crate::store::lease_store::LeaseStore;
use crate::waiters::leases::is_collecting;
use canal_core::{
    Change, Entry, Key, Outcome, RULES_VERSION, Request, RequestId, Revision, Table, Token,
};
use canal_log::journal::{self, Batch, Journal, NoRoom};
use canal_log::state::{Durable, StateFile};
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

/// The embedded journal, and the data that must survive a reboot.
#[derive(Debug)]
pub(crate) struct JournalStore {
    pub journal: Journal,
    pub state: StateFile,
    pub durable: Durable,
    pub origin: Origin,
    pub dir: PathBuf,
    pub fault: Fault,
    /// Applied changes that are not in the journal yet.
    pub turn: Batch,
    pub leases: LeaseStore,
    /// The room that the journal needs for the ends of all holds and waiting requests.
    pub rooms: Rooms,
}

/// The room that requests may still need in the journal.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    each: BTreeMap<RequestId, u64>,
    sum: u64,
}

impl Rooms {
    pub(crate) fn add(&mut self, id: RequestId, request: &Request) {
        let room = journal::room_for(request);
        self.sum += room;
        self.sum -= self.each.insert(id, room).unwrap_or(0);
    }

    fn remove(&mut self, id: RequestId) {
        self.sum -= self.each.remove(&id).unwrap_or(0);
    }

    pub(crate) fn of_table(table: &Table) -> Self {
        let mut rooms = Self::default();
        table.waiters().for_each(|waiter| rooms.add(waiter.id, &waiter.request));
        table.holds().for_each(|hold| rooms.add(hold.request, &hold.asked));
        rooms
    }
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
}

impl JournalStore {
    /// Notes an entry that was applied.
    pub(crate) fn note(
        &mut self,
        table: &Table,
        revision: Revision,
        entry: &Entry,
        outcomes: &[Outcome],
    ) {
        for outcome in outcomes {
            self.account(table, entry, outcome);
        }
        self.turn.push(revision, entry, outcomes);
    }

    fn account(&mut self, table: &Table, entry: &Entry, outcome: &Outcome) {
        match outcome {
            Outcome::Queued { request, .. } => self.keep_room(table, entry, *request),
            Outcome::Granted(granted) => {
                self.keep_room(table, entry, granted.request);
                let hold = table.hold(granted.token);
                if hold.is_some_and(|hold| hold.asked.ttl_ms.is_some() && !is_collecting(hold)) {
                    self.leases.begin(granted.token);
                }
            }
            Outcome::ConfirmedAt { was, token, .. } => {
                if let Some(hold) = table.hold(*token) {
                    self.rooms.add(hold.request, &hold.asked);
                }
                self.leases.confirm(*was, *token);
            }
            Outcome::Renewed { frame, .. }
                if matches!(
                    entry.change,
                    Change::Renew { note: Some(_), .. } | Change::Renew { ttl_ms: Some(_), .. }
                ) =>
            {
                for hold in table.holds_in(*frame) {
                    self.rooms.add(hold.request, &hold.asked);
                    self.leases.change(hold.token);
                }
            }
            Outcome::Requeued { token, .. } => self.leases.end(*token),
            Outcome::Withdrawn { request } | Outcome::Refused { request, .. } => {
                self.rooms.remove(*request);
            }
            Outcome::Released { request, token, whole: true, .. } => {
                self.rooms.remove(*request);
                self.leases.end(*token);
            }
            _ => {}
        }
    }

    fn keep_room(&mut self, table: &Table, entry: &Entry, id: RequestId) {
        if let Change::Request(request) = &entry.change
            && id.0 == table.revision().0
        {
            self.rooms.add(id, request);
        }
    }

    /// Ensures that a new request and all its consequences can be recorded.
    pub(crate) fn admit(&mut self, table: &Table, request: &Request) -> Result<(), NoRoom> {
        self.reserve_tokens(table, TOKENS_LEFT_MIN + table.waiting() as u64)
            .and_then(|()| self.reserve_request(table))
            .map_err(|error| NoRoom { dir: self.dir.clone(), error })?;
        self.admit_bytes(table, journal::room_for(request))
    }

    /// Ensures that this many bytes, which belong to no request, can be recorded.
    pub(crate) fn admit_bytes(&mut self, table: &Table, bytes: u64) -> Result<(), NoRoom> {
        let Err(first) = self.journal.admit(bytes, self.rooms.sum) else { return Ok(()) };
        // A compacted file may still have room. Changes that are not in the journal yet are
        // committed first, so that compaction does not lose them.
        if self.commit(table).is_err() || self.compact(table).is_err() {
            return Err(first);
        }
        self.journal.admit(bytes, self.rooms.sum)
    }

    /// Ensures that at least `ahead` tokens can be assigned without a write to the disk.
    pub(super) fn reserve_tokens(&mut self, table: &Table, ahead: u64) -> io::Result<()> {
        let next = table.next_token().0;
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
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Durable)) -> io::Result<()> {
        let mut durable = self.durable.clone();
        change(&mut durable);
        self.state.store(&durable)?;
        self.durable = durable;
        Ok(())
    }

    /// Records everything that was applied since the last commit, in one write.
    ///
    /// # Errors
    /// The daemon must not report any of these changes, and must end.
    pub(crate) fn commit(&mut self, table: &Table) -> io::Result<()> {
        self.record(table)?;
        // The daemon may report the end of a lease before it is durable. At worst the lease comes
        // back after a crash of the machine, if no lease was granted since: the append that makes a
        // grant durable contains all earlier ends.
        if self.waits_for_disk()
            && let Err(error) = self.keep_leases(table)
        {
            tracing::warn!(%error, "cannot make the end or the note of a lease durable yet");
        }
        Ok(())
    }

    fn record(&mut self, table: &Table) -> io::Result<()> {
        if self.turn.is_empty() {
            return Ok(());
        }
        self.reserve_tokens(table, 0)?;
        if let Some(written) = self.fault.strikes_after(self.turn.len()) {
            self.turn.truncate(written);
            self.journal.append(&self.turn)?;
            Fault::strike();
        }
        if let Err(error) = self.journal.append(&self.turn) {
            tracing::warn!(%error, "cannot append to the journal; beginning a new one");
            // Another file may be writable, and its snapshot contains the changes that could not be
            // appended.
            self.compact(table).map_err(|_| error)?;
        }
        self.turn.clear();
        Ok(())
    }

    /// Makes the leases that hold something now durable, and no others.
    ///
    /// # Errors
    /// Names the file that cannot be written. The daemon must not report leases granted since.
    pub(crate) fn keep_leases(&mut self, table: &Table) -> io::Result<()> {
        self.leases.store(table)
    }

    /// The generated name of a machine that has no name. It is created on the first call.
    pub(crate) fn machine_name(&mut self) -> io::Result<String> {
        if let Some(machine) = &self.durable.node.machine {
            return Ok(machine.clone());
        }
        let machine = format!("{:016x}{:016x}", random()?, random()?);
        self.change(|durable| durable.node.machine = Some(machine.clone()))?;
        Ok(machine)
    }

    /// Notes that this daemon knows all its grants over nodes. From now on the file of the leases
    /// exists: if it is missing at a later start, leases were lost.
    pub(crate) fn settle_node(&mut self, table: &Table) -> io::Result<()> {
        self.leases.write_anew(table)?;
        self.change(|durable| durable.node.is_anew = false)
    }

    /// Whether the next [`Self::commit`] waits for the disk.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.leases.waits_for_disk()
    }

    /// Compacts the journal if that is worthwhile. Called when nothing waits to be recorded.
    pub(crate) fn tidy(&mut self, table: &Table) {
        if !self.journal.wants_compaction() {
            return;
        }
        match self.compact(table) {
            Ok(()) => tracing::debug!("compacted the journal"),
            Err(error) => tracing::warn!(%error, "cannot compact the journal"),
        }
    }

    /// Continues in a journal that begins with a snapshot of the table.
    pub(crate) fn compact(&mut self, table: &Table) -> io::Result<()> {
        let snapshot = table.snapshot();
        self.journal.compact(&snapshot, &self.origin, RULES_VERSION, self.rooms.sum)
    }

    /// Creates the journal's files again if they are missing.
    pub(crate) fn recreate(&mut self, table: &Table) -> io::Result<()> {
        let snapshot = table.snapshot();
        self.journal.recreate(&self.dir, &snapshot, &self.origin, RULES_VERSION, self.rooms.sum)?;
        self.turn.clear();
        // These files may be in the same directory.
        self.leases.write_anew(table)?;
        self.change(|_| {})
    }
}

/// The bytes to record a setting of a key, with these numbers of buckets.
pub(crate) fn setting_bytes(key: &Key, numbers: usize) -> u64 {
    // A key appears in the entry and in the snapshot, in the worst case with every character
    // escaped; a number also in the outcome.
    1024 + 4 * key.as_str().len() as u64 + 3 * 21 * numbers as u64
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
