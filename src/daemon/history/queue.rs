//! What the daemon and the thread of its history say to each other.
//!
//! Both hold the lock only to move what lies here. The daemon wakes the thread when something comes
//! after a rest, and not for each record.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::daemon::calls::conn_id::ConnId;
use crate::daemon::history::raw::Raw;
use crate::history::{Batch, Counts, Found, Present, Query, Record, Summary};

/// Records that are not written wait at most about this long: what a daemon that is killed loses.
const BATCH_TIME: Duration = Duration::from_millis(400);

/// When this many bytes of records wait, the thread writes them at once.
const BATCH_BYTES: usize = 64 * 1024;

/// More bytes of records than this do not wait: the newest are dropped and counted.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// What is asked of the history.
#[derive(Debug)]
pub(crate) enum Question {
    Records(Query),
    /// How long what fits waited and held its locks. `viewer` is the user whose commands are told
    /// apart; `None` means all.
    Counts {
        query: Query,
        viewer: Option<u32>,
        present: Present,
    },
}

/// What was found.
#[derive(Debug)]
pub(crate) enum Answer {
    Records(Found),
    Counts(Box<Counts>),
}

/// What the daemon and the thread of its history say to each other.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    /// Whether `found` is not empty.
    has_found: AtomicBool,
    /// How many bytes the files have; 0 while that is not known.
    bytes: AtomicU64,
}

/// What is open at a time.
#[derive(Debug)]
pub(crate) struct Noted {
    pub(crate) at_ms: u64,
    /// `None` if it is what was noted before.
    pub(crate) open: Option<Vec<Raw>>,
}

#[derive(Debug, Default)]
struct State {
    batch: Batch,
    /// What ended with a process: the kernel may tell how. There are no more of them than `Exits` keeps
    /// processes.
    with_exit: Vec<Raw>,
    /// What ended before this daemon began.
    recalled: Vec<Record>,
    noted: Option<Noted>,
    searches: VecDeque<(ConnId, Question)>,
    found: Vec<(ConnId, Answer)>,
    /// Whether the thread waits until something comes.
    rests: bool,
    closing: bool,
    /// How many records were dropped.
    dropped: u64,
    /// What an operator should know.
    notes: [Option<String>; 2],
    /// Wakes the daemon.
    waker: Option<Waker>,
    /// How long keys were held lately; `None` before the files are read.
    summary: Option<Arc<Summary>>,
}

/// What a note is about. A later note about the same replaces it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About {
    /// A file that was set aside.
    Aside,
    /// Files that cannot be written now.
    Writing,
}

/// What the thread is to do.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) with_exit: Vec<Raw>,
    pub(crate) recalled: Vec<Record>,
    pub(crate) noted: Option<Noted>,
    pub(crate) searches: VecDeque<(ConnId, Question)>,
    /// It is to end when this is done.
    pub(crate) closing: bool,
}

impl Queue {
    /// The state. A thread that panicked left it whole: each change of it is a single move.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands records over, and what ended with a process. Nothing is left of both; records for which
    /// there is no room are dropped.
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

    /// Hands over what ended before this daemon began. It may be written already.
    pub(crate) fn recall(&self, records: Vec<Record>) {
        let mut state = self.lock();
        state.recalled.extend(records);
        state.rests = false;
        self.wake.notify_one();
    }

    /// Hands over what is open now.
    pub(crate) fn note_open(&self, noted: Noted) {
        let mut state = self.lock();
        let before = state.noted.take().and_then(|before| before.open);
        state.noted = Some(Noted { open: noted.open.or(before), ..noted });
        state.rests = false;
        self.wake.notify_one();
    }

    /// Asks for something. The answer is for this connection.
    pub(crate) fn search(&self, id: ConnId, question: Question) {
        let mut state = self.lock();
        state.searches.push_back((id, question));
        state.rests = false;
        self.wake.notify_one();
    }

    /// Has the thread end when everything is written.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }

    /// What wakes the daemon when something was found.
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

    /// How many records were dropped since the daemon started.
    pub(crate) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// How long keys were held lately; `None` before the files are read.
    pub(crate) fn summary(&self) -> Option<Arc<Summary>> {
        self.lock().summary.clone()
    }

    /// How many bytes the files have, if that is known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        Some(self.bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.lock().notes.iter().flatten().cloned().collect()
    }
}

/// The side of the thread.
impl Queue {
    /// Waits for something to do. `is_busy`: takes only what is there. `is_late`: records are left
    /// that are to be written soon, even if nothing comes. `batch`, which is empty, becomes what is to
    /// be written, and its memory is filled next.
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

    /// Hands over what was found, and wakes the daemon.
    pub(crate) fn answer(&self, id: ConnId, found: Answer) {
        let mut state = self.lock();
        state.found.push((id, found));
        self.has_found.store(true, Ordering::Release);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }

    /// Hands over how long keys were held lately. What was handed over before is freed when the
    /// daemon has taken this.
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
    use crate::history::{Ending, Fields, ItemFields};

    fn pushed(batch: &mut Batch, command: &str) {
        let items: [ItemFields<'_>; 0] = [];
        let (ended_ms, waited_ms, token, session, uid, pid) = Default::default();
        batch.push(Fields {
            ended_ms,
            waited_ms,
            held_ms: None,
            token,
            items: items.into_iter(),
            session,
            uid,
            pid,
            command,
            note: None,
            host: None,
            at_least: false,
            ending: &Ending::Released,
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
        // There is room again.
        batch.clear();
        pushed(&mut batch, &command);
        queue.hand_over(&mut batch, &mut Vec::new());
        assert_eq!(queue.dropped(), dropped);
    }
}
