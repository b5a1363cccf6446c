//! Follows the decisions of the table, and records each request of this host that has ended.
//!
//! `follow` interprets the entries of the log. This file has the interface for the daemon, and
//! hands records over to the thread that writes them.

mod follow;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::calls::call::ConnId;
use crate::calls::in_flight::Applied;
use crate::history::cause::Cause;
use crate::history::exits::Exits;
use crate::history::open::{Open, Unseen};
use crate::history::queue::{Answer, Noted, Question, Queue};
use crate::history::raw::Raw;
use crate::history::writer::{self, Files};
use crate::metrics::counters::{Counters, Ended};
use canal_core::{FrameId, HostId, RequestId, Table, Tag, Token};
use canal_history::{Batch, Checkpoint, Ending, Record, Summary};
use canal_sys::clock;
use canal_sys::pidfd::Pidfd;

pub(crate) use follow::is_of;

/// A change of the open requests is noted within this time.
const NOTED_WITHIN: Duration = Duration::from_secs(30);

/// While a request is open, the daemon notes at least this often that it still runs.
const NOTED_AT_LEAST_EVERY: Duration = Duration::from_secs(3_600);

/// The most open requests that are noted, holds before waiters.
const NOTED_MAX: usize = 10_000;

/// The history of this daemon, its counters, and the events for hooks.
#[derive(Debug)]
pub(crate) struct History {
    /// The requests of this host that wait or hold something.
    open: BTreeMap<RequestId, Open>,
    /// The requests that ended in this turn.
    ended: Vec<Raw>,
    /// The data on its way to the thread: records, and requests that ended with a process.
    batch: Batch,
    with_exit: Vec<Raw>,
    exits: Exits,
    /// Frames whose process ended while no daemon ran, with the last time at which the process is
    /// known to have lived.
    unseen: BTreeMap<FrameId, u64>,
    /// Waiters whose time has expired. With an engine, their withdrawal does not carry this reason.
    timed_out: BTreeSet<RequestId>,
    /// Waiters whose clients have reported that their output has no reader.
    abandoned: BTreeSet<RequestId>,
    /// The counts of grants and ends, for `canal metrics`.
    counters: Counters,
    queue: Arc<Queue>,
    /// `None` if requests that end are only counted.
    files: Option<Files>,
    /// How long keys were held recently, as of the last update.
    summary: Option<Arc<Summary>>,
    /// The ended requests that the hooks have not received yet; `None` if no hook needs them.
    notable: Option<Vec<Raw>>,
    /// The name of this host, if other hosts share the table.
    host: Option<Arc<str>>,
    /// `None` until the thread has work.
    thread: Option<JoinHandle<()>>,
    /// When to note the open requests.
    note_due: Option<Instant>,
    /// The time between the last two notes.
    note_pause: Duration,
    /// Whether the open requests have changed since the last note.
    is_changed: bool,
    /// Whether the last note contains an open request.
    is_noted: bool,
    /// The requests that the previous daemon left with an engine, until this host is a member.
    left: Option<Left>,
}

/// The requests that the previous daemon left with an engine.
#[derive(Debug)]
struct Left {
    /// The open requests.
    records: Vec<Record>,
    /// The last time at which it is known to have run.
    known_ms: u64,
}

impl History {
    /// A history in these files, which are opened when they are first needed. Without files, ended
    /// requests are only counted. `host` is the name of this host, if other hosts share the table.
    pub(crate) fn new(files: Option<Files>, host: Option<&str>) -> Self {
        Self {
            open: BTreeMap::new(),
            ended: Vec::new(),
            batch: Batch::default(),
            with_exit: Vec::new(),
            exits: Exits::default(),
            unseen: BTreeMap::new(),
            timed_out: BTreeSet::new(),
            abandoned: BTreeSet::new(),
            counters: Counters::since(clock::unix_ms()),
            queue: Arc::default(),
            files,
            summary: None,
            notable: None,
            host: host.map(Arc::from),
            thread: None,
            note_due: None,
            note_pause: NOTED_WITHIN,
            is_changed: false,
            is_noted: false,
            left: None,
        }
    }

    /// Whether records are kept.
    pub(crate) fn is_on(&self) -> bool {
        self.files.is_some()
    }

    /// Sets whether hooks `are_told` of ended requests.
    pub(crate) fn tell_hooks(&mut self, are_told: bool) {
        let before = self.notable.take();
        self.notable = are_told.then(|| before.unwrap_or_default());
    }

    /// Takes the ended requests for hooks since the last call.
    pub(crate) fn take_notable(&mut self) -> Vec<Raw> {
        self.notable.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// The counters, including this turn.
    pub(crate) fn counters(&mut self) -> &mut Counters {
        self.hand_over();
        &mut self.counters
    }

    /// Takes in the decisions of an entry of the log. `cause` is the meaning of the entry.
    pub(crate) fn take_in(
        &mut self,
        cause: &Cause,
        applied: &Applied,
        table: &Table,
        here: HostId,
    ) {
        let asked = RequestId(applied.revision.0);
        for outcome in &applied.outcomes {
            self.take_in_outcome(cause, asked, outcome, table, here);
        }
        self.is_changed |= !applied.outcomes.is_empty();
        if let Cause::End(frame) = cause {
            self.note_end(*frame, table);
        }
    }

    /// Records the requests that ended while no daemon ran: those from the journal, and those noted
    /// as open before the machine went down. `shares`: an engine will later show which of them are
    /// still held.
    pub(crate) fn take_in_unseen(&mut self, unseen: &Unseen, shares: bool) {
        let Some(files) = &self.files else { return };
        let left = Checkpoint::read(&files.dir).unwrap_or_default();
        // A record without a boot id may be from any boot.
        let is_of_this_boot =
            left.boot_id == files.boot_id || left.boot_id.is_empty() || files.boot_id.is_empty();
        self.is_noted = !left.records.is_empty();
        let known_ms = unseen.known_ms.max(left.known_ms).min(clock::unix_ms());
        let mut records = unseen.records(known_ms, self.host.as_ref());
        if !is_of_this_boot {
            // Leases outlive the machine.
            for it in left.records.into_iter().filter(|it| it.pid != 0 || it.held_ms.is_none()) {
                records.push(&Record { ending: Ending::Reboot, ..it });
            }
        } else if shares {
            self.left = Some(Left { records: left.records, known_ms });
        }
        self.recall(records);
        // The file must no longer name the requests that are recorded now.
        self.is_changed = self.is_noted;
    }

    /// Records the holds of the previous daemon with an engine that are no longer in the table.
    /// Called when this host has become a member. `ending` is how those holds ended.
    pub(crate) fn take_in_left(&mut self, table: &Table, ending: &Ending) {
        if let Some(mut left) = self.left.take() {
            left.records.retain(|record| {
                let was_held = record.held_ms.is_some() && record.pid != 0;
                was_held && table.hold(Token(record.token)).is_none()
            });
            left.records.iter_mut().for_each(|record| record.ending.clone_from(ending));
            self.recall(left.records.iter().collect());
        }
    }

    /// Notes that the process of a frame has ended, perhaps while no daemon ran.
    pub(crate) fn ends_unseen(&mut self, frame: FrameId) {
        if let Some(left) = &self.left {
            self.unseen.insert(frame, left.known_ms);
        }
    }

    /// When to note the open requests.
    pub(crate) fn note_due(&self) -> Option<Instant> {
        self.note_due
    }

    /// Notes the open requests if that is due. Called after the replies are written.
    pub(crate) fn note_open(&mut self, now: Instant) {
        if self.files.is_none() || self.left.is_some() {
            return;
        }
        if self.note_due.take_if(|due| *due <= now).is_some() {
            self.hand_over_open();
            if !self.open.is_empty() {
                // An idle daemon should sleep, so the pause doubles. After a crash of the machine,
                // a long hold may therefore be known for only half of its time.
                self.note_pause = (self.note_pause * 2).min(NOTED_AT_LEAST_EVERY);
                self.note_due = Some(now + self.note_pause);
            }
        }
        if self.open.is_empty() && !self.is_noted {
            self.note_due = None;
        } else if self.is_changed {
            let soon = now + NOTED_WITHIN;
            self.note_pause = NOTED_WITHIN;
            self.note_due = Some(self.note_due.map_or(soon, |due| due.min(soon)));
        }
    }

    /// Notes that the time of a waiter has expired.
    pub(crate) fn times_out(&mut self, request: RequestId) {
        self.timed_out.insert(request);
    }

    /// Notes that the client of a waiter abandons it, because the client's output has no reader.
    pub(crate) fn abandons(&mut self, request: RequestId) {
        self.abandoned.insert(request);
    }

    /// Forgets the refusal of a request that is made again.
    pub(crate) fn take_back(&mut self, tag: Tag) {
        if let Some(at) = self.ended.iter().rposition(|raw| raw.asked.tag == tag) {
            self.ended.remove(at);
            if let Some(notable) = &mut self.notable {
                notable.retain(|raw| raw.asked.tag != tag);
            }
        }
    }

    /// Keeps the ended process of a frame, if there is room among `descriptors`. The kernel may
    /// have its exit status.
    pub(crate) fn keep_exit(&mut self, frame: FrameId, pidfd: Pidfd, descriptors: usize) {
        if self.files.is_some() {
            self.exits.keep(frame, pidfd, descriptors);
        }
    }

    /// Counts the ended requests, and hands them to the thread that writes them. Called after the
    /// replies are written.
    pub(crate) fn hand_over(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        // Requests that no daemon saw end began before this daemon started to count.
        for raw in self.ended.iter().filter(|raw| !raw.at_least) {
            let Raw { asked, ending, ended_ms: at_ms, held_ms, .. } = raw;
            self.counters.ended(Ended { asked, ending, at_ms: *at_ms, held_ms: *held_ms });
        }
        if self.files.is_none() {
            self.ended.clear();
        } else if self.starts() {
            // At this point the requests are in the processor's cache, and the thread that created
            // them frees them.
            for raw in self.ended.drain(..) {
                match raw.exit {
                    None => self.batch.push(&raw.fields()),
                    Some(_) => self.with_exit.push(raw),
                }
            }
            self.queue.hand_over(&mut self.batch, &mut self.with_exit);
        } else {
            self.queue.count_dropped(self.ended.len() as u64);
            self.ended.clear();
        }
    }

    /// Starts a search for a connection. Returns whether it was started: it is not if the history
    /// is off or has no thread.
    pub(crate) fn search(&mut self, id: ConnId, question: Question) -> bool {
        // The search also finds the requests that ended in this turn.
        if !self.starts() {
            return false;
        }
        self.hand_over();
        self.queue.search(id, question);
        true
    }

    /// Takes the results since the last call.
    pub(crate) fn take_found(&self) -> Vec<(ConnId, Answer)> {
        if self.queue.has_found() { self.queue.take_found() } else { Vec::new() }
    }

    /// Sets the waker that wakes the daemon when there is a result.
    pub(crate) fn wake_by(&self, waker: Waker) {
        self.queue.wake_by(waker);
    }

    /// Updates how long keys were held recently. At first this is unknown, because the thread reads
    /// the files.
    pub(crate) fn learn(&mut self) {
        if self.starts() {
            self.summary = self.queue.summary();
        }
    }

    /// How long keys were held recently, as of the last [`Self::learn`].
    pub(crate) fn summary(&self) -> Option<&Summary> {
        self.summary.as_deref()
    }

    /// The number of records dropped since the daemon started.
    pub(crate) fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    /// The total size of the files in bytes, if it is known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.queue.bytes()
    }

    /// Notes for operators.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.queue.notes()
    }

    /// Writes the remaining records. Called when the daemon ends.
    pub(crate) fn close(&mut self) {
        self.hand_over();
        if self.files.is_some() && self.left.is_none() {
            self.hand_over_open();
        }
        if let Some(thread) = self.thread.take() {
            self.queue.close();
            if thread.join().is_err() {
                tracing::error!("the history thread has failed");
            }
        }
    }

    /// Hands these records to the thread, which writes those that are not in the files yet.
    fn recall(&mut self, records: Batch) {
        if !records.is_empty() && self.starts() {
            self.queue.recall(records);
        }
    }

    /// Hands over the open requests, if there are any now or there were at the last note.
    fn hand_over_open(&mut self) {
        if !self.is_noted && self.open.is_empty() || !self.starts() {
            self.is_changed = false;
            return;
        }
        let at_ms = clock::unix_ms();
        let is_changed = std::mem::take(&mut self.is_changed);
        let open = is_changed.then(|| {
            let (held, waiting): (Vec<_>, Vec<_>) =
                self.open.values().partition(|open| open.granted.is_some());
            let noted = held.into_iter().chain(waiting).take(NOTED_MAX);
            let raw = |open: &Open| {
                let raw = open.ended_at(at_ms, Ending::Reboot);
                Raw { host: self.host.clone(), ..raw }
            };
            noted.map(raw).collect()
        });
        self.is_noted = !self.open.is_empty();
        self.queue.note_open(Noted { at_ms, open });
    }

    /// Starts the thread if it does not run. Returns whether it runs.
    fn starts(&mut self) -> bool {
        if self.thread.is_none()
            && let Some(files) = &self.files
        {
            match writer::start(Arc::clone(&self.queue), files.clone()) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => tracing::warn!(%error, "the history has no thread"),
            }
        }
        self.thread.is_some()
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new(None, None)
    }
}

#[cfg(test)]
mod tests;
