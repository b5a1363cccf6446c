//! Connects the daemon to the thread of its history.
//!
//! Each side holds the mutex only to move data in or out. The daemon wakes the thread when the
//! first record arrives after a pause, not for each record.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::calls::call::ConnId;
use crate::history::raw::Raw;
use canal_history::{Batch, Counts, Found, Present, Query, Summary};

/// Records wait at most about this long before they are written. A killed daemon loses the records
/// of this time.
const BATCH_TIME: Duration = Duration::from_millis(400);

/// When this many bytes of records wait, the thread writes them immediately.
const BATCH_BYTES: usize = 64 * 1024;

/// The most bytes of records that wait. Newer records are dropped and counted.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// A query to the history.
#[derive(Debug)]
pub(crate) enum Question {
    Records(Query),
    /// How long the matching requests waited and held their locks. `viewer` is the user whose
    /// commands are counted separately; `None` means all users.
    Counts {
        query: Query,
        viewer: Option<u32>,
        present: Present,
    },
}

/// The result of a query.
#[derive(Debug)]
pub(crate) enum Answer {
    Records(Found),
    Counts(Box<Counts>),
}

/// Connects the daemon to the thread of its history.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    /// Whether `found` is not empty.
    has_found: AtomicBool,
    /// The total size of the files in bytes; 0 while it is unknown.
    bytes: AtomicU64,
}

/// The open requests at a time.
#[derive(Debug)]
pub(crate) struct Noted {
    pub at_ms: u64,
    /// `None` if nothing has changed since the last note.
    pub open: Option<Vec<Raw>>,
}

#[derive(Debug, Default)]
struct State {
    batch: Batch,
    /// The requests that ended with a process, about which the kernel may have an exit status.
    /// Their number is bounded by the processes that `Exits` keeps.
    with_exit: Vec<Raw>,
    /// The requests that ended before this daemon started.
    recalled: Batch,
    noted: Option<Noted>,
    searches: VecDeque<(ConnId, Question)>,
    found: Vec<(ConnId, Answer)>,
    /// Whether the thread sleeps until it is woken.
    rests: bool,
    closing: bool,
    /// The number of dropped records.
    dropped: u64,
    /// Notes for operators.
    notes: [Option<String>; 2],
    /// Wakes the daemon.
    waker: Option<Waker>,
    /// How long keys were held recently; `None` before the files are read.
    summary: Option<Arc<Summary>>,
}

/// The subject of a note. A later note on the same subject replaces it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About {
    /// A file that was set aside.
    Aside,
    /// Files that cannot be written at present.
    Writing,
}

/// The work for the thread.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub with_exit: Vec<Raw>,
    pub recalled: Batch,
    pub noted: Option<Noted>,
    pub searches: VecDeque<(ConnId, Question)>,
    /// The thread ends after this work.
    pub closing: bool,
}

impl Queue {
    /// Locks the state. A thread that panicked left it consistent: each change is a single move.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over records, and the requests that ended with a process. Empties both. Drops the
    /// records for which there is no room.
    pub(crate) fn hand_over(&self, batch: &mut Batch, with_exit: &mut Vec<Raw>) {
        let mut state = self.lock();
        let before = state.batch.bytes();
        if before + batch.bytes() <= WAITING_BYTES_MAX {
            state.batch.take_from(batch);
        } else {
            state.dropped += batch.records();
            batch.clear();
        }
        state.with_exit.append(with_exit);
        let is_full = before < BATCH_BYTES && state.batch.bytes() >= BATCH_BYTES;
        if is_full || std::mem::take(&mut state.rests) {
            self.wake.notify_one();
        }
    }

    /// Hands over the records of requests that ended before this daemon started. They may already
    /// be in the files.
    pub(crate) fn recall(&self, mut records: Batch) {
        let mut state = self.lock();
        state.recalled.take_from(&mut records);
        state.rests = false;
        self.wake.notify_one();
    }

    /// Hands over the open requests.
    pub(crate) fn note_open(&self, noted: Noted) {
        let mut state = self.lock();
        let before = state.noted.take().and_then(|before| before.open);
        state.noted = Some(Noted { open: noted.open.or(before), ..noted });
        state.rests = false;
        self.wake.notify_one();
    }

    /// Sends a query. The answer is for this connection.
    pub(crate) fn search(&self, id: ConnId, question: Question) {
        let mut state = self.lock();
        state.searches.push_back((id, question));
        state.rests = false;
        self.wake.notify_one();
    }

    /// Asks the thread to end when everything is written.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }

    /// Sets the waker that wakes the daemon when there is a result.
    pub(crate) fn wake_by(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    pub(crate) fn has_found(&self) -> bool {
        self.has_found.load(Ordering::Acquire)
    }

    pub(crate) fn take_found(&self) -> Vec<(ConnId, Answer)> {
        let mut state = self.lock();
        self.has_found.store(false, Ordering::Release);
        std::mem::take(&mut state.found)
    }

    /// The number of records dropped since the daemon started.
    pub(crate) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// How long keys were held recently; `None` before the files are read.
    pub(crate) fn summary(&self) -> Option<Arc<Summary>> {
        self.lock().summary.clone()
    }

    /// The total size of the files in bytes, if it is known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        Some(self.bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.lock().notes.iter().flatten().cloned().collect()
    }
}

/// The thread's side.
impl Queue {
    /// Waits for work. With `is_busy`, takes only the work that is ready. With `is_late`, waits at
    /// most for `BATCH_TIME`, because records remain to be written. The empty `batch` is swapped
    /// for the records to write, so that its memory is reused.
    pub(crate) fn take(&self, is_busy: bool, is_late: bool, batch: &mut Batch) -> Taken {
        let mut state = self.lock();
        if !is_busy {
            let has_work = |state: &State| !state.searches.is_empty() || state.closing;
            let is_idle = |state: &State| {
                let has_ended = !state.batch.is_empty() || !state.with_exit.is_empty();
                !has_ended && state.recalled.is_empty() && state.noted.is_none()
            };
            while !has_work(&state) && is_idle(&state) && !is_late {
                state.rests = true;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.rests = false;
            let until = Instant::now() + BATCH_TIME;
            while !has_work(&state) && state.batch.bytes() < BATCH_BYTES {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                let waited = self.wake.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        std::mem::swap(&mut state.batch, batch);
        Taken {
            with_exit: std::mem::take(&mut state.with_exit),
            recalled: std::mem::take(&mut state.recalled),
            noted: state.noted.take(),
            searches: std::mem::take(&mut state.searches),
            closing: state.closing,
        }
    }

    /// Hands over a result, and wakes the daemon.
    pub(crate) fn answer(&self, id: ConnId, found: Answer) {
        let mut state = self.lock();
        state.found.push((id, found));
        self.has_found.store(true, Ordering::Release);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }

    /// Hands over how long keys were held recently. The previous summary is freed when the daemon
    /// has taken this one.
    pub(crate) fn publish(&self, summary: &Summary) {
        let summary = Some(Arc::new(summary.clone()));
        let before = std::mem::replace(&mut self.lock().summary, summary);
        drop(before);
    }

    pub(crate) fn note(&self, about: About, note: Option<String>) {
        self.lock().notes[about as usize] = note;
    }

    pub(crate) fn set_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_dropped(&self, count: u64) {
        self.lock().dropped += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_history::{Ending, Fields};

    fn pushed(batch: &mut Batch, command: &str) {
        let (ended_ms, waited_ms, token, session, uid, pid) = Default::default();
        batch.push(&Fields {
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
        queue.take(true, false, &mut batch);
        assert!(batch.bytes() <= WAITING_BYTES_MAX);
        assert_eq!(batch.records() + dropped, 100, "each is taken or counted");
        // The batch was written, so there is room again.
        batch.clear();
        pushed(&mut batch, &command);
        queue.hand_over(&mut batch, &mut Vec::new());
        assert_eq!(queue.dropped(), dropped);
    }
}
