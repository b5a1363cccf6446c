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

use crate::calls::completion::Applied;
use crate::calls::conn_id::ConnId;
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

/// The history of this daemon, its counters, and the events for hooks; `None` before it is set up.
#[derive(Debug, Default)]
pub(crate) struct History(Option<Box<Recorder>>);

#[derive(Debug)]
struct Recorder {
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
        Self(Some(Box::new(Recorder {
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
        })))
    }

    /// Whether records are kept.
    pub(crate) fn is_on(&self) -> bool {
        self.0.as_ref().is_some_and(|recorder| recorder.files.is_some())
    }

    /// Whether the history follows the table.
    pub(crate) fn follows(&self) -> bool {
        self.0.is_some()
    }

    /// Sets whether hooks `are_told` of ended requests. If the history does not follow a table yet,
    /// it then follows `table` for the host `here`.
    pub(crate) fn tell_hooks(
        &mut self,
        are_told: bool,
        host: Option<&str>,
        table: &Table,
        here: HostId,
    ) {
        if are_told && self.0.is_none() {
            *self = Self::new(None, host);
            self.follow(table, here);
        }
        if let Some(recorder) = &mut self.0 {
            let before = recorder.notable.take();
            recorder.notable = are_told.then(|| before.unwrap_or_default());
        }
    }

    /// Takes the ended requests for hooks since the last call.
    pub(crate) fn take_notable(&mut self) -> Vec<Raw> {
        let notable = self.0.as_mut().and_then(|recorder| recorder.notable.as_mut());
        notable.map_or_else(Vec::new, std::mem::take)
    }

    /// The counters, including this turn; `None` before the history is set up.
    pub(crate) fn counters(&mut self) -> Option<&mut Counters> {
        self.hand_over();
        self.0.as_mut().map(|recorder| &mut recorder.counters)
    }

    /// Takes in the decisions of an entry of the log. `cause` is the meaning of the entry.
    pub(crate) fn take_in(
        &mut self,
        cause: &Cause,
        applied: &Applied,
        table: &Table,
        here: HostId,
    ) {
        if let Some(recorder) = &mut self.0 {
            let asked = RequestId(applied.revision.0);
            for outcome in &applied.outcomes {
                recorder.take_in(cause, asked, outcome, table, here);
            }
            recorder.is_changed |= !applied.outcomes.is_empty();
            if let Cause::End(frame) = cause {
                recorder.note_end(*frame, table);
            }
        }
    }

    /// Notes that all holds of processes of this host are now lost.
    pub(crate) fn lose(&mut self) {
        if let Some(recorder) = &mut self.0 {
            recorder.lose();
        }
    }

    /// Takes over a table that replaces the previous one, or another part of the same table.
    /// Requests that are no longer in it ended unseen.
    pub(crate) fn follow(&mut self, table: &Table, here: HostId) {
        if let Some(recorder) = &mut self.0 {
            recorder.follow(table, here);
        }
    }

    /// Records the requests that ended while no daemon ran: those from the journal, and those noted
    /// as open before the machine went down. `shares`: an engine will later show which of them are
    /// still held.
    pub(crate) fn take_in_unseen(&mut self, unseen: &Unseen, shares: bool) {
        let Some(recorder) = &mut self.0 else { return };
        let Some(files) = &recorder.files else { return };
        let left = Checkpoint::read(&files.dir).unwrap_or_default();
        // A record without a boot id may be from any boot.
        let is_of_this_boot =
            left.boot_id == files.boot_id || left.boot_id.is_empty() || files.boot_id.is_empty();
        recorder.is_noted = !left.records.is_empty();
        let known_ms = unseen.known_ms.max(left.known_ms).min(clock::unix_ms());
        let mut records = unseen.records(known_ms, recorder.host.as_ref());
        if !is_of_this_boot {
            // Leases outlive the machine.
            let void = left.records.into_iter().filter(|it| it.pid != 0 || it.held_ms.is_none());
            records.extend(void.map(|it| Record { ending: Ending::Reboot, ..it }));
        } else if shares {
            recorder.left = Some(Left { records: left.records, known_ms });
        }
        recorder.recall(records);
        // The file must no longer name the requests that are recorded now.
        recorder.is_changed = recorder.is_noted;
    }

    /// Records the holds of the previous daemon with an engine that are no longer in the table.
    /// Called when this host has become a member. `ending` is how those holds ended.
    pub(crate) fn take_in_left(&mut self, table: &Table, ending: &Ending) {
        if let Some(recorder) = &mut self.0
            && let Some(mut left) = recorder.left.take()
        {
            left.records.retain(|record| {
                let was_held = record.held_ms.is_some() && record.pid != 0;
                was_held && table.hold(Token(record.token)).is_none()
            });
            left.records.iter_mut().for_each(|record| record.ending.clone_from(ending));
            recorder.recall(left.records);
        }
    }

    /// Notes that the process of a frame has ended, perhaps while no daemon ran.
    pub(crate) fn ends_unseen(&mut self, frame: FrameId) {
        if let Some(recorder) = &mut self.0
            && let Some(left) = &recorder.left
        {
            recorder.unseen.insert(frame, left.known_ms);
        }
    }

    /// When to note the open requests.
    pub(crate) fn note_due(&self) -> Option<Instant> {
        self.0.as_ref()?.note_due
    }

    /// Notes the open requests if that is due. Called after the replies are written.
    pub(crate) fn note_open(&mut self, now: Instant) {
        let Some(recorder) = &mut self.0 else { return };
        if recorder.files.is_none() || recorder.left.is_some() {
            return;
        }
        if recorder.note_due.take_if(|due| *due <= now).is_some() {
            recorder.note_open();
            if !recorder.open.is_empty() {
                // An idle daemon should sleep, so the pause doubles. After a crash of the machine,
                // a long hold may therefore be known for only half of its time.
                recorder.note_pause = (recorder.note_pause * 2).min(NOTED_AT_LEAST_EVERY);
                recorder.note_due = Some(now + recorder.note_pause);
            }
        }
        if recorder.open.is_empty() && !recorder.is_noted {
            recorder.note_due = None;
        } else if recorder.is_changed {
            let soon = now + NOTED_WITHIN;
            recorder.note_pause = NOTED_WITHIN;
            recorder.note_due = Some(recorder.note_due.map_or(soon, |due| due.min(soon)));
        }
    }

    /// Notes that the time of a waiter has expired.
    pub(crate) fn times_out(&mut self, request: RequestId) {
        if let Some(recorder) = &mut self.0 {
            recorder.timed_out.insert(request);
        }
    }

    /// Notes that the client of a waiter abandons it, because the client's output has no reader.
    pub(crate) fn abandons(&mut self, request: RequestId) {
        if let Some(recorder) = &mut self.0 {
            recorder.abandoned.insert(request);
        }
    }

    /// Forgets the refusal of a request that is made again.
    pub(crate) fn take_back(&mut self, tag: Tag) {
        if let Some(recorder) = &mut self.0
            && let Some(at) = recorder.ended.iter().rposition(|raw| raw.asked.tag == tag)
        {
            recorder.ended.remove(at);
            if let Some(notable) = &mut recorder.notable {
                notable.retain(|raw| raw.asked.tag != tag);
            }
        }
    }

    /// Keeps the ended process of a frame, if there is room among `descriptors`. The kernel may
    /// have its exit status.
    pub(crate) fn keep_exit(&mut self, frame: FrameId, pidfd: Pidfd, descriptors: usize) {
        if let Some(recorder) = &mut self.0
            && recorder.files.is_some()
        {
            recorder.exits.keep(frame, pidfd, descriptors);
        }
    }

    /// Counts the ended requests, and hands them to the thread that writes them. Called after the
    /// replies are written.
    pub(crate) fn hand_over(&mut self) {
        if let Some(recorder) = &mut self.0
            && !recorder.ended.is_empty()
        {
            recorder.hand_over();
        }
    }

    /// Starts a search for a connection. Returns whether it was started: it is not if the history
    /// is off or has no thread.
    pub(crate) fn search(&mut self, id: ConnId, question: Question) -> bool {
        let Some(recorder) = self.0.as_mut() else { return false };
        // The search also finds the requests that ended in this turn.
        if !recorder.starts() {
            return false;
        }
        recorder.hand_over();
        recorder.queue.search(id, question);
        true
    }

    /// Takes the results since the last call.
    pub(crate) fn take_found(&self) -> Vec<(ConnId, Answer)> {
        let Some(recorder) = &self.0 else { return Vec::new() };
        if recorder.queue.has_found() { recorder.queue.take_found() } else { Vec::new() }
    }

    /// Sets the waker that wakes the daemon when there is a result.
    pub(crate) fn wake_by(&self, waker: Waker) {
        if let Some(recorder) = &self.0 {
            recorder.queue.wake_by(waker);
        }
    }

    /// Updates how long keys were held recently. At first this is unknown, because the thread reads
    /// the files.
    pub(crate) fn learn(&mut self) {
        if let Some(recorder) = &mut self.0
            && recorder.starts()
        {
            recorder.summary = recorder.queue.summary();
        }
    }

    /// How long keys were held recently, as of the last [`Self::learn`].
    pub(crate) fn summary(&self) -> Option<&Summary> {
        self.0.as_ref()?.summary.as_deref()
    }

    /// The number of records dropped since the daemon started.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.as_ref().map_or(0, |recorder| recorder.queue.dropped())
    }

    /// The total size of the files in bytes, if it is known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.0.as_ref().and_then(|recorder| recorder.queue.bytes())
    }

    /// Notes for operators.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.0.as_ref().map_or_else(Vec::new, |recorder| recorder.queue.notes())
    }

    /// Writes the remaining records. Called when the daemon ends.
    pub(crate) fn close(&mut self) {
        self.hand_over();
        if let Some(recorder) = &mut self.0
            && recorder.files.is_some()
            && recorder.left.is_none()
        {
            recorder.note_open();
        }
        if let Some(recorder) = &mut self.0
            && let Some(thread) = recorder.thread.take()
        {
            recorder.queue.close();
            if thread.join().is_err() {
                tracing::error!("the history thread has failed");
            }
        }
    }
}

impl Recorder {
    /// Hands these records to the thread, which writes those that are not in the files yet.
    fn recall(&mut self, records: Vec<Record>) {
        if !records.is_empty() && self.starts() {
            self.queue.recall(records);
        }
    }

    /// Notes the open requests, if there are any now or there were at the last note.
    fn note_open(&mut self) {
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

    fn hand_over(&mut self) {
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
                    None => self.batch.push(raw.fields()),
                    Some(_) => self.with_exit.push(raw),
                }
            }
            self.queue.hand_over(&mut self.batch, &mut self.with_exit);
        } else {
            self.queue.count_dropped(self.ended.len() as u64);
            self.ended.clear();
        }
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

#[cfg(test)]
mod tests;
