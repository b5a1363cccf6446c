//! The loss of a lock: what the daemon does to the process then, and the thread that watches the
//! deadline page of a lock that can be lost.
//!
//! Invariant: the answer to "is it lost?" is read from the page at the time of the question, so it
//! is right even if the thread did not run for a while.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use nix::sys::eventfd::{EfdFlags, EventFd};

use canal_protocol::Tag;
use canal_protocol::paths::Place;
use canal_sys::deadline_page::{Reader, Why};
use canal_sys::fds;

use crate::client::hold_monitor::{HoldMonitor, LostHold, PAUSE_MIN};
use crate::client::{Fate, Options, Start};

/// The action on this process if it loses its lock. Only a daemon with an engine (PostgreSQL or
/// etcd) can lose a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnLost {
    /// The daemon does nothing to the process. The [`Guard`](crate::Guard) reports the loss, and
    /// the program must stop its work under the lock.
    #[default]
    Tell,
    /// The daemon also sends the process SIGTERM.
    Term,
    /// The daemon also sends the process SIGTERM, and kills it before another host can get the
    /// lock. If the program itself does nothing, only this variant keeps the lock exclusive.
    Kill,
}

impl From<OnLost> for canal_protocol::OnLost {
    fn from(on_lost: OnLost) -> Self {
        match on_lost {
            OnLost::Tell => Self::Warn,
            OnLost::Term => Self::Term,
            OnLost::Kill => Self::Kill,
        }
    }
}

/// The reason for the loss of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The host could not reach the engine for too long.
    Unreachable,
    /// Another host declared this host gone.
    Gone,
    /// The history of the engine changed (a fail-over or a restored backup).
    Rewritten,
    /// Another daemon writes to the engine under the name of this host.
    Taken,
    /// Another reason.
    Other,
}

impl From<Why> for LostReason {
    fn from(why: Why) -> Self {
        match why {
            Why::Away => Self::Unreachable,
            Why::Gone => Self::Gone,
            Why::Rewritten => Self::Rewritten,
            Why::Taken => Self::Taken,
            // The library never takes locks at nodes.
            Why::Other | Why::Fewer => Self::Other,
        }
    }
}

/// A lock that was lost or can no longer be relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// The fencing token of the lock.
    pub token: u64,
    /// The reason for the loss.
    pub reason: LostReason,
    /// The address of the engine, without user, password and parameters.
    pub engine: String,
    /// The name by which users know this host.
    pub host: String,
    /// How long the host had failed to reach the engine when it lost the lock.
    pub unreached_for: Duration,
}

impl From<&LostHold> for Lost {
    fn from(hold: &LostHold) -> Self {
        Self {
            token: hold.token,
            reason: hold.why.into(),
            engine: hold.engine.clone(),
            host: hold.host.clone(),
            unreached_for: Duration::from_millis(hold.at.saturating_sub(hold.reached_at)),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, engine, host, unreached_for, .. } = self;
        let seconds = unreached_for.as_secs();
        write!(f, "lost the lock with token {token}: ")?;
        match self.reason {
            LostReason::Unreachable => write!(f, "canal last reached {engine} {seconds}s earlier"),
            LostReason::Gone => write!(f, "this host ({host}) was declared gone"),
            LostReason::Rewritten => write!(f, "the history of {engine} changed"),
            LostReason::Taken => write!(f, "another daemon is writing to {engine} as {host}"),
            LostReason::Other => write!(f, "the daemon of this host ({host}) reported it"),
        }
    }
}

/// The longest time that a question to the daemon that may have taken over the lock may take.
const ANSWER_MAX: Duration = Duration::from_secs(1);

type Callback = Box<dyn FnOnce(&Lost) + Send>;

/// A watched lock. Dropping this value ends the watch.
pub(super) struct LossMonitor {
    shared: Arc<Shared>,
    /// The process in which the thread runs. A fork gets a copy of this value but no thread.
    pid: u32,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when the lock is lost.
    lost: Condvar,
    /// Wakes the thread so that it ends.
    stop: EventFd,
    place: Place,
    tag: Tag,
}

struct State {
    page: HoldMonitor,
    callbacks: Vec<Callback>,
}

impl LossMonitor {
    /// Starts to watch a hold.
    ///
    /// # Errors
    /// No descriptors or threads are left.
    pub(super) fn begin(page: Reader, token: u64, place: Place, tag: Tag) -> io::Result<Self> {
        // A lost lock stays lost. The daemon carries out the action that was requested for a loss.
        let page = HoldMonitor::new(page, token, canal_protocol::OnLost::Term)?;
        let state = State { page, callbacks: Vec::new() };
        let (state, lost) = (Mutex::new(state), Condvar::new());
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let shared = Arc::new(Shared { state, lost, stop, place, tag });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("canal-guard".to_owned());
        thread.spawn(move || theirs.watch())?;
        Ok(Self { shared, pid: std::process::id() })
    }

    /// The loss, if it has happened.
    pub(super) fn lost(&self) -> Option<Lost> {
        self.shared.lock().lost()
    }

    /// Waits for the loss, at most this long.
    pub(super) fn wait_lost(&self, time: Duration) -> Option<Lost> {
        let is_held = |state: &mut State| state.lost().is_none();
        let waited = self.shared.lost.wait_timeout_while(self.shared.lock(), time, is_held);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.lost()
    }

    /// Calls back at the loss: in the thread, or now if the loss has already happened.
    pub(super) fn on_lost(&self, callback: Callback) {
        let mut state = self.shared.lock();
        match state.lost() {
            None => state.callbacks.push(callback),
            Some(lost) => {
                drop(state);
                callback(&lost);
            }
        }
    }
}

impl Drop for LossMonitor {
    fn drop(&mut self) {
        // A fork shares the event with the process that has the thread.
        if self.pid == std::process::id() {
            self.shared.lock().callbacks.clear();
            let _ = self.shared.stop.write(1);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the hold is lost, and reports the loss. Returns early if the watch is ended.
    fn watch(&self) {
        let mut ask_at = None;
        loop {
            if self.stop.read().is_ok() {
                return;
            }
            let mut state = self.lock();
            if let Some(lost) = state.lost() {
                let callbacks = std::mem::take(&mut state.callbacks);
                drop(state);
                self.lost.notify_all();
                return callbacks.into_iter().for_each(|callback| callback(&lost));
            }
            let sure = state.page.orphaned_but_safe_for();
            let token = state.page.token;
            let polled: io::Result<Vec<OwnedFd>> =
                state.page.polled().map(|fd| fd.try_clone_to_owned()).collect();
            drop(state);
            let mut patience = None;
            if let Some(sure) = sure {
                let now = Instant::now();
                let at = *ask_at.get_or_insert(now + Fate::pause(sure));
                if now >= at {
                    ask_at = None;
                    // The present daemon knows what became of a hold whose page lost its writer.
                    let mut options = Options::from(Start::Never);
                    options.limits.idle = (sure / 4).clamp(PAUSE_MIN, ANSWER_MAX);
                    if let Some(fate) = Fate::ask(&self.place, options, self.tag, token) {
                        self.lock().page.learn(fate);
                    }
                    continue;
                }
                patience = Some(at - now);
            }
            match polled {
                Ok(polled) => self.sleep(&polled, patience),
                // No descriptors are left for the wait.
                Err(_) => self.sleep(&[], Some(PAUSE_MIN)),
            }
        }
    }

    /// Sleeps until something is due.
    fn sleep(&self, polled: &[OwnedFd], patience: Option<Duration>) {
        let polled = polled.iter().map(AsFd::as_fd).chain([self.stop.as_fd()]);
        if fds::wait_readable(polled, patience).is_err() {
            thread::sleep(PAUSE_MIN);
        }
    }
}

impl State {
    /// The loss, if the page shows one.
    fn lost(&mut self) -> Option<Lost> {
        // The page can be read even if its timer fails.
        let _ = self.page.check();
        self.page.lost().map(Lost::from)
    }
}

impl fmt::Debug for LossMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossMonitor").field("lost", &self.lost()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_names_its_reason() {
        let lost = |why| {
            let (engine, host) = ("etcd".to_owned(), "alpha".to_owned());
            let then = None;
            Lost::from(&LostHold {
                token: 7,
                why,
                at: 60_000,
                reached_at: 15_000,
                engine,
                host,
                then,
                is_refused: false,
            })
        };
        assert_eq!(
            lost(Why::Away).to_string(),
            "lost the lock with token 7: canal last reached etcd 45s earlier"
        );
        for (why, words) in [
            (Why::Gone, "this host (alpha) was declared gone"),
            (Why::Rewritten, "the history of etcd changed"),
            (Why::Taken, "another daemon is writing to etcd as alpha"),
            (Why::Other, "the daemon of this host (alpha)"),
        ] {
            let text = lost(why).to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
