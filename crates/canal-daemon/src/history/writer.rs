//! The thread of the history: writes records in batches, and searches.
//!
//! Only this thread touches the files. It has the lowest priority, so that it takes no processor
//! time from a busy daemon and its clients. [`Queue`] connects the daemon to it. Each side holds
//! the mutex only to move data in or out. The daemon wakes the thread when the first record arrives
//! after a pause, not for each record.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::calls::call::ConnId;
use crate::history::followed_requests::EndedRequest;
use canal_history::{Batch, Checkpoint, Limits, Store, Summary, Tally, unrecorded};
use canal_sys::clock;

/// Records wait at most about this long before they are written. A killed daemon loses the records
/// of this time.
const BATCH_TIME: Duration = Duration::from_millis(400);

/// When this many bytes of records wait, the thread writes them immediately.
const BATCH_BYTES: usize = 64 * 1024;

/// The most bytes of records that wait. Newer records are dropped and counted.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// A search of the history, in progress or complete.
#[derive(Debug)]
pub(crate) enum Search {
    Records(canal_history::Search),
    /// How long the matching requests waited and held their locks.
    Counts(Box<Tally>),
}

/// Connects the daemon to the thread of its history.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

/// The work for the thread.
#[derive(Debug, Default)]
pub(super) struct Work {
    batch: Batch,
    /// The requests that ended with a process, about which the kernel may have an exit status.
    /// Their number is bounded by the processes that `Exits` keeps.
    with_exit: Vec<EndedRequest>,
    /// The requests that ended before this daemon started.
    pub recalled: Batch,
    /// The open requests.
    pub noted: Option<Checkpoint>,
    pub searches: VecDeque<(ConnId, Search)>,
    /// The thread ends after this work.
    pub closing: bool,
}

impl Work {
    /// Whether the thread begins at once.
    fn is_urgent(&self) -> bool {
        !self.searches.is_empty() || self.closing || self.batch.bytes() >= BATCH_BYTES
    }

    fn is_empty(&self) -> bool {
        let has_ended = !self.batch.is_empty() || !self.with_exit.is_empty();
        !has_ended && self.recalled.is_empty() && self.noted.is_none()
    }
}

#[derive(Debug, Default)]
struct State {
    work: Work,
    found: Vec<(ConnId, Search)>,
    /// Whether the thread sleeps until it is woken.
    rests: bool,
    /// The number of dropped records.
    dropped: u64,
    /// The total size of the files in bytes, once it is known.
    bytes: Option<u64>,
    /// A note for operators about a file that was set aside or is damaged.
    aside: Option<String>,
    /// A note for operators about files that cannot be written at present.
    failure: Option<String>,
    /// Wakes the daemon.
    waker: Option<Waker>,
    /// How long keys were held recently; `None` before the files are read.
    summary: Option<Arc<Summary>>,
}

impl Queue {
    /// Locks the state. A thread that panicked left it consistent: each change is a single move.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over records, and the requests that ended with a process. Empties both. Drops the
    /// records for which there is no room.
    pub(super) fn hand_over(&self, batch: &mut Batch, with_exit: &mut Vec<EndedRequest>) {
        let mut state = self.lock();
        let before = state.work.batch.bytes();
        if before + batch.bytes() <= WAITING_BYTES_MAX {
            state.work.batch.take_from(batch);
        } else {
            state.dropped += batch.records();
            batch.clear();
        }
        state.work.with_exit.append(with_exit);
        let is_full = before < BATCH_BYTES && state.work.batch.bytes() >= BATCH_BYTES;
        if is_full || std::mem::take(&mut state.rests) {
            self.wake.notify_one();
        }
    }

    /// Hands over work that the thread begins at once.
    pub(super) fn give(&self, add: impl FnOnce(&mut Work)) {
        let mut state = self.lock();
        add(&mut state.work);
        state.rests = false;
        self.wake.notify_one();
    }

    /// Sets the waker that wakes the daemon when there is a result.
    pub(crate) fn wake_by(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    /// Takes the results since the last call.
    pub(crate) fn take_found(&self) -> Vec<(ConnId, Search)> {
        std::mem::take(&mut self.lock().found)
    }

    /// The number of records dropped since the daemon started.
    pub(crate) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// How long keys were held recently; `None` before the files are read.
    pub(super) fn summary(&self) -> Option<Arc<Summary>> {
        self.lock().summary.clone()
    }

    /// The total size of the files in bytes, if it is known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.lock().bytes
    }

    /// Notes for operators.
    pub(crate) fn notes(&self) -> Vec<String> {
        let state = self.lock();
        [&state.aside, &state.failure].into_iter().flatten().cloned().collect()
    }

    // The thread's side.

    /// Waits for work. With `is_busy`, takes only the work that is ready. With `is_late`, waits at
    /// most for `BATCH_TIME`, because records remain to be written. The next records go to the
    /// empty `batch`, so that its memory is reused.
    fn take(&self, is_busy: bool, is_late: bool, batch: Batch) -> Work {
        let mut state = self.lock();
        if !is_busy {
            let rests = |it: &mut State| {
                it.rests = it.work.is_empty() && !it.work.is_urgent() && !is_late;
                it.rests
            };
            state = self.wake.wait_while(state, rests).unwrap_or_else(PoisonError::into_inner);
            let is_early = |it: &mut State| !it.work.is_urgent();
            let waited = self.wake.wait_timeout_while(state, BATCH_TIME, is_early);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let closing = state.work.closing;
        std::mem::replace(&mut state.work, Work { batch, closing, ..Work::default() })
    }

    /// Hands over how long keys were held recently. The previous summary is freed when the daemon
    /// has taken this one.
    fn publish(&self, summary: &Summary) {
        let summary = Some(Arc::new(summary.clone()));
        let before = std::mem::replace(&mut self.lock().summary, summary);
        drop(before);
    }

    pub(super) fn count_dropped(&self, count: u64) {
        self.lock().dropped += count;
    }
}

/// How long to wait before using the files again after a failure. Records that arrive in between
/// are dropped.
const RETRY: Duration = Duration::from_secs(10);

/// The nice value of the thread.
const LOWEST_PRIORITY: i32 = 19;

/// The stack size of the thread.
const STACK_BYTES: usize = 256 * 1024;

/// The directory of the files, and their limits.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub dir: PathBuf,
    pub limits: Limits,
    /// The boot of the machine.
    pub boot_id: String,
}

/// Starts the thread.
pub(super) fn start(queue: Arc<Queue>, files: Files) -> io::Result<std::thread::JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("history".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || {
        // This applies to this thread only.
        let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
        let summary = Summary::default();
        Writer { queue, files, store: None, failed: None, late: Vec::new(), summary }.work();
    })
}

impl Search {
    /// Searches the next file. Returns whether the search is complete.
    fn step(&mut self, store: &Store) -> bool {
        match self {
            Self::Records(search) => search.step(store),
            Self::Counts(tally) => tally.step(store),
        }
    }
}

struct Writer {
    queue: Arc<Queue>,
    files: Files,
    /// `None` before it is first needed, and after a failure.
    store: Option<Store>,
    /// When an operation on the files last failed.
    failed: Option<Instant>,
    /// Requests that wait for an exit status, at most once.
    late: Vec<EndedRequest>,
    /// How long keys were held recently.
    summary: Summary,
}

impl Writer {
    fn work(mut self) {
        let mut searches: VecDeque<(ConnId, Search)> = VecDeque::new();
        let mut batch = Batch::default();
        self.open();
        self.summary = self.store.as_ref().map(Summary::of).unwrap_or_default();
        self.queue.publish(&self.summary);
        loop {
            let is_busy = !searches.is_empty();
            let mut work = self.queue.take(is_busy, !self.late.is_empty(), batch);
            searches.extend(work.searches);
            self.recall(&work.recalled);
            self.add_exits(work.with_exit, work.closing || is_busy, &mut work.batch);
            self.append(&work.batch);
            batch = work.batch;
            batch.clear();
            work.noted.iter().for_each(|noted| self.note_open(noted));
            if work.closing {
                return;
            }
            let Some((_, search)) = searches.front_mut() else { continue };
            self.open();
            let is_over = self.store.as_ref().is_none_or(|store| search.step(store));
            if is_over && let Some((id, search)) = searches.pop_front() {
                let mut state = self.queue.lock();
                if let Search::Records(search) = &search
                    && let Some(first) = search.damaged
                {
                    let path = self.files.dir.join(format!("{first:016x}"));
                    let note = format!("one of its history files is damaged: {}", path.display());
                    state.aside = Some(note);
                }
                state.found.push((id, search));
                state.waker.iter().for_each(Waker::wake_by_ref);
            }
        }
    }

    /// Adds the requests that ended with a process. Those without an exit status from the kernel
    /// are left for the next call, which comes soon. With `now`, none is left.
    fn add_exits(&mut self, with_exit: Vec<EndedRequest>, now: bool, batch: &mut Batch) {
        let late = std::mem::take(&mut self.late).into_iter().map(|ended| (ended, true));
        for (ended, now) in late.chain(with_exit.into_iter().map(|ended| (ended, now))) {
            match ended.exit.as_ref().and_then(|exit| exit.status()) {
                Some(status) => {
                    let ending = ended.ending.clone().with_status(status);
                    batch.push(&EndedRequest { ending, ..ended }.record());
                }
                None if now => batch.push(&ended.record()),
                None => self.late.push(ended),
            }
        }
    }

    /// Writes those records of requests that ended before this daemon started that are not in the
    /// files yet.
    fn recall(&mut self, records: &Batch) {
        if records.is_empty() {
            return;
        }
        self.open();
        match &self.store {
            Some(store) => self.append(&unrecorded(store, records)),
            None => self.queue.count_dropped(records.records()),
        }
    }

    /// Notes the open requests.
    fn note_open(&mut self, noted: &Checkpoint) {
        self.open();
        let dir = &self.files.dir;
        if self.store.is_some()
            && let Err(error) = noted.write(dir)
        {
            tracing::debug!("cannot record open requests in {}: {error}", dir.display());
        }
    }

    fn append(&mut self, batch: &Batch) {
        if batch.is_empty() {
            return;
        }
        batch.read().for_each(|record| self.summary.add_record(&record));
        self.queue.publish(&self.summary);
        self.open();
        let Some(store) = &mut self.store else { return self.queue.count_dropped(batch.records()) };
        match store.append(batch, clock::unix_ms()) {
            Ok(()) => self.queue.lock().bytes = Some(store.bytes()),
            Err(error) => {
                self.store = None;
                self.queue.count_dropped(batch.records());
                self.fail(&error);
            }
        }
    }

    /// Opens the files if they are not open and have not just failed.
    fn open(&mut self) {
        if self.store.is_some() || self.failed.is_some_and(|at| at.elapsed() < RETRY) {
            return;
        }
        match Store::open(&self.files.dir, self.files.limits) {
            Ok((store, aside)) => {
                if let Some(aside) = aside {
                    tracing::warn!("moved a history file aside: {aside}");
                    let note = format!("it moved one of its history files aside: {aside}");
                    self.queue.lock().aside = Some(note);
                }
                if self.failed.take().is_some() {
                    tracing::info!("writing the history again");
                }
                let mut state = self.queue.lock();
                (state.failure, state.bytes) = (None, Some(store.bytes()));
                drop(state);
                self.store = Some(store);
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &io::Error) {
        let dir = self.files.dir.display();
        if self.failed.is_none() {
            tracing::warn!("cannot write the history in {dir}: {error}");
        }
        self.failed = Some(Instant::now());
        let note = format!("it cannot write its history in {dir}: {error}");
        self.queue.lock().failure = Some(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_history::{Ending, Record};

    fn pushed(batch: &mut Batch, command: &str) {
        let (ended_ms, waited_ms, token, session, uid, pid) = Default::default();
        batch.push(&Record {
            ended_ms,
            waited_ms,
            held_ms: None,
            token,
            items: Vec::new(),
            session,
            uid,
            pid,
            command: command.into(),
            note: None,
            host: None,
            at_least: false,
            ending: Ending::Released,
        });
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let queue = Queue::default();
        let command = "x".repeat(100_000);
        let mut batch = Batch::default();
        for _ in 0..50 {
            pushed(&mut batch, &command);
            pushed(&mut batch, "small");
            queue.hand_over(&mut batch, &mut Vec::new());
            assert!(batch.is_empty());
        }
        let dropped = queue.dropped();
        assert!(dropped > 0 && dropped < 50, "{dropped}");
        batch = queue.take(true, false, batch).batch;
        assert!(batch.bytes() <= WAITING_BYTES_MAX);
        assert_eq!(batch.records() + dropped, 100, "each is taken or counted");
        // The batch was written, so there is room again.
        batch.clear();
        pushed(&mut batch, &command);
        queue.hand_over(&mut batch, &mut Vec::new());
        assert_eq!(queue.dropped(), dropped);
    }
}
