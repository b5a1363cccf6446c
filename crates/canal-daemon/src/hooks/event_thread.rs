//! The thread of a hook runs its program for one event at a time. The other events wait.
//!
//! Invariants: the number of waiting events is bounded, for each user and in total. Users take
//! turns, so that one user's flood of events does not delay another's. Each user's events are taken
//! at a bounded rate. Dropped events are counted.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::hooks::HookSettings;
use crate::hooks::event::{About, Event};
use crate::hooks::event_backlog::{Backlog, Next};
use crate::hooks::run_and_end_program::{Job, Outcome};
use crate::wording::time;
use canal_core::UnixMillis;
use canal_sys::clock;
use canal_text::duration::milliseconds;

/// How long after the timeout of the program its guard is killed, if the guard does not answer.
const GUARD_LATE: Duration = Duration::from_secs(15);

/// The most bytes that are read from a guard.
const SAID_MAX: u64 = 4096;

/// The stack size of the thread.
const STACK_BYTES: usize = 256 * 1024;

/// The option that makes canal the guard of a hook.
const GUARD_OPTION: &str = "--hook-guard";

/// The thread of a hook. It ends by itself after [`Self::retire`] and [`Self::end`].
#[derive(Debug)]
pub(crate) struct EventThread {
    shared: Arc<Shared>,
    /// `None` if the system could not start one.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    backlog: Backlog<Event>,
    /// The channel to the guard, while one runs.
    running: Option<UnixStream>,
    /// Whether an event is being handled.
    busy: bool,
    /// Whether no further program may start.
    closing: bool,
    /// A note for operators.
    note: Option<String>,
}

impl EventThread {
    /// Starts the thread. `program` is canal.
    pub(crate) fn start(program: PathBuf, settings: Arc<HookSettings>, about: Arc<About>) -> Self {
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("hook".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || its.work(&program, &settings, &about));
        let thread = thread.map_err(|error| {
            tracing::warn!(%error, "cannot start a thread for a hook");
            shared.lock().note = Some(format!("cannot start its thread: {error}"));
        });
        Self { shared, thread: thread.ok() }
    }

    /// Adds an event of this user, which is made only if there is room for it.
    pub(crate) fn push(&self, uid: u32, event: impl FnOnce() -> Option<Event>) {
        let has_room = self.thread.is_some() && self.shared.lock().backlog.has_room(uid);
        if has_room && let Some(event) = event() {
            self.shared.lock().backlog.push(uid, event);
            self.shared.wake.notify_one();
        }
    }

    /// Whether a program runs, or an event waits.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.shared.lock();
        state.busy || !state.backlog.is_empty()
    }

    /// The note for operators.
    pub(crate) fn note(&self) -> Option<String> {
        self.shared.lock().note.clone()
    }

    /// Asks the thread to end after the running program. Waiting events are dropped.
    pub(crate) fn retire(&self) {
        let mut state = self.shared.lock();
        (state.closing, state.backlog) = (true, Backlog::default());
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Ends the running program and the thread.
    pub(crate) fn end(&self) {
        self.retire();
        if let Some(channel) = &self.shared.lock().running {
            let _ = channel.shutdown(Shutdown::Both);
        }
    }

    /// Whether the thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Shared {
    /// Locks the state. A thread that panicked left it consistent: each change is a single move.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, program: &Path, settings: &HookSettings, about: &About) {
        while let Some((event, dropped)) = self.next() {
            let job = Job {
                run: settings.run.clone(),
                user: settings.user.clone(),
                timeout_ms: milliseconds(settings.timeout),
                facts: event.facts(about, dropped),
            };
            let outcome = self.run(program, &job, settings.timeout + GUARD_LATE);
            self.heed(settings, outcome);
        }
    }

    /// Waits for an event that may be handled now. `None` ends the thread.
    fn next(&self) -> Option<(Event, u64)> {
        let mut state = self.lock();
        loop {
            if state.closing {
                return None;
            }
            let now = Instant::now();
            state = match state.backlog.take(now) {
                Next::Event(event, dropped) => {
                    state.busy = true;
                    return Some((event, dropped));
                }
                Next::At(at) => {
                    let waited = self.wake.wait_timeout(state, at.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Next::Nothing => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Runs a job in a guard, and waits for its result.
    ///
    /// # Errors
    /// The guard cannot be started, or did not answer.
    fn run(&self, program: &Path, job: &Job, patience: Duration) -> io::Result<Outcome> {
        let (ours, its) = UnixStream::pair()?;
        ours.set_read_timeout(Some(patience))?;
        {
            let mut state = self.lock();
            if state.closing {
                return Ok(None);
            }
            state.running = Some(ours.try_clone()?);
        }
        let mut child = {
            let mut command = Command::new(program);
            command.arg0("canal").args(["daemon", GUARD_OPTION]).env_clear();
            command.stdin(OwnedFd::from(its)).stdout(Stdio::null()).stderr(Stdio::null());
            // `command` owns the guard's end of the channel, which only the guard may keep open, so
            // it is dropped here.
            command.spawn()?
        };
        let said = answer(&ours, job);
        if said.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            // The guard is stopped. The kernel kills the program together with it.
            let _ = child.kill();
        }
        let _ = child.wait();
        let said = said?;
        serde_json::from_slice(&said)
            .map_err(|_| io::Error::other("its guard ended without a result"))
    }

    /// Updates the note with the result of an event.
    fn heed(&self, settings: &HookSettings, outcome: io::Result<Outcome>) {
        let note = outcome.unwrap_or_else(|error| Some(format!("could not be started: {error}")));
        let mut state = self.lock();
        (state.running, state.busy) = (None, false);
        let before = state.note.take();
        let is_new = match (&note, &before) {
            // The earlier note ends with a time.
            (Some(now), Some(before)) => !before.starts_with(now),
            (now, before) => now.is_some() != before.is_some(),
        };
        let at = time(UnixMillis(clock::unix_ms()));
        state.note = note.as_ref().map(|note| format!("{note} (last at {at})"));
        drop(state);
        let hook = settings.program();
        match note {
            Some(note) if is_new => tracing::warn!("the hook {hook} {note}"),
            None if is_new => tracing::info!("the hook {hook} works again"),
            _ => {}
        }
    }
}

/// Sends a job to a guard, and reads its answer until the channel closes.
fn answer(mut channel: &UnixStream, job: &Job) -> io::Result<Vec<u8>> {
    channel.write_all(&serde_json::to_vec(job)?)?;
    channel.shutdown(Shutdown::Write)?;
    let mut said = Vec::new();
    channel.take(SAID_MAX).read_to_end(&mut said)?;
    Ok(said)
}
