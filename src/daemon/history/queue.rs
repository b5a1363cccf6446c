//! What the daemon and the thread of its history say to each other.
//!
//! Both hold the lock only to move what lies here. The daemon wakes the thread when something comes
//! after a rest, and not for each record.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::daemon::history::raw::Raw;
use crate::daemon::net::conn_id::ConnId;
use crate::history::{Counts, Found, Present, Query, Record, Summary};

/// Records that are not written wait at most about this long: what a daemon that is killed loses.
const BATCH_TIME: Duration = Duration::from_millis(400);

/// The number of waiting records at which the thread writes them at once. Each keeps its request, so
/// this is also how much memory goes round before it is used again.
const BATCH: usize = 1_024;

/// More records than this do not wait: the newest are dropped and counted.
const WAITING_MAX: usize = 16_384;

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
    raws: Vec<Raw>,
    /// Those that are written, for the daemon to free.
    written: Vec<Raw>,
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
    pub(crate) raws: Vec<Raw>,
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

    /// Hands records over. Those for which there is no room are dropped. `written`: those that are
    /// written come here if it is empty.
    pub(crate) fn hand_over(&self, raws: &mut Vec<Raw>, written: &mut Vec<Raw>) {
        let mut state = self.lock();
        let before = state.raws.len();
        let room = WAITING_MAX.saturating_sub(before);
        state.dropped += raws.len().saturating_sub(room) as u64;
        state.raws.extend(raws.drain(..).take(room));
        if written.is_empty() {
            std::mem::swap(&mut state.written, written);
        }
        let is_full = before < BATCH && state.raws.len() >= BATCH;
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
    /// that are to be written soon, even if nothing comes.
    pub(crate) fn take(&self, is_busy: bool, is_late: bool) -> Taken {
        let mut state = self.lock();
        if !is_busy {
            let has_work = |state: &State| !state.searches.is_empty() || state.closing;
            let is_idle = |state: &State| {
                state.raws.is_empty() && state.recalled.is_empty() && state.noted.is_none()
            };
            while !has_work(&state) && is_idle(&state) && !is_late {
                state.rests = true;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.rests = false;
            let until = Instant::now() + BATCH_TIME;
            while !has_work(&state) && state.raws.len() < BATCH {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                let waited = self.wake.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        Taken {
            raws: std::mem::take(&mut state.raws),
            recalled: std::mem::take(&mut state.recalled),
            noted: state.noted.take(),
            searches: std::mem::take(&mut state.searches),
            closing: state.closing,
        }
    }

    /// Gives back what is written. Memory that the thread freed itself would cost the daemon more: both
    /// would want the allocator at a time.
    pub(crate) fn give_back(&self, mut written: Vec<Raw>) {
        let mut state = self.lock();
        if state.written.len() < WAITING_MAX {
            state.written.append(&mut written);
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

    pub(crate) fn count_dropped(&self, count: usize) {
        self.lock().dropped += count as u64;
    }
}
