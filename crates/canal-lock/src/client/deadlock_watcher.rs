//! Waits for a plain lock within a run over nodes: a separate process, the *deadlock watcher*,
//! looks for deadlocks over the nodes.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::channel::{End, Received, channel};
use canal_protocol::{Acquire, CycleStepInfo, ErrorName, Failure, RunId, Tag};

/// How long the request waits before it starts a process that looks.
const START_AFTER: Duration = Duration::from_secs(1);

/// How often to check for a deadlock.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The channel to a process that looks for deadlocks. The process ends with it.
#[derive(Debug)]
pub struct DeadlockWatcher {
    channel: End,
    unread: Option<Vec<String>>,
}

/// The result of the process that looks.
#[derive(Serialize, Deserialize)]
pub enum Found {
    /// The request must end a deadlock.
    Deadlock {
        /// The deadlock, as text for the user.
        message: String,
        /// The ring, the waiting request first.
        cycle: Vec<CycleStepInfo>,
    },
    /// These nodes cannot be read, so a deadlock over them would not be found.
    Unread(Vec<String>),
}

impl DeadlockWatcher {
    /// A process that looks, and sends what it has [`Found`].
    #[must_use]
    pub fn over(channel: End) -> Self {
        Self { channel, unread: None }
    }

    /// Begins to look for the request of this tag, in a process that may have several threads:
    /// `program`, which is canal, looks. It takes its socket and the run from `args` and from the
    /// environment.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_program(program: &Path, args: &[OsString], tag: Tag) -> io::Result<Self> {
        let (ours, theirs) = channel()?;
        ours.send(&tag, &[]);
        let mut command = Command::new(program);
        command.arg("deadlock-watcher").args(args).stdin(OwnedFd::from(theirs));
        let mut between = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // If this process ignores SIGCHLD, the kernel has reaped it.
        let _ = between.wait();
        Ok(Self::over(ours))
    }

    /// The refusal of the waiting request, once it must end a deadlock.
    fn found(&mut self) -> Option<Failure> {
        loop {
            match self.channel.receive() {
                Received::Message(Found::Deadlock { message, cycle }, _) => {
                    let (reason, cycle) = (Some("deadlock".into()), cycle.into());
                    let new = Failure::new(ErrorName::Refused, message);
                    return Some(Failure { reason, cycle, ..new });
                }
                Received::Message(Found::Unread(nodes), _) => self.unread = Some(nodes),
                Received::Nothing | Received::End => return None,
            }
        }
    }
}

/// The search for deadlocks on behalf of one request, which waits at the daemon of this machine.
pub struct WaitWithin<F> {
    /// The run over nodes within which it waits; `None` if there is none, or if no program can
    /// look.
    run: Option<RunId>,
    tag: Tag,
    since: Option<Instant>,
    deadlock_watcher: Option<DeadlockWatcher>,
    start: F,
}

impl<F: FnMut(RunId, Tag) -> Option<DeadlockWatcher>> WaitWithin<F> {
    /// `start` begins to look, if that is possible here.
    pub fn new(request: &Acquire, start: F) -> Self {
        let Acquire { under_run: run, tag, .. } = *request;
        Self { run, tag, since: None, deadlock_watcher: None, start }
    }

    /// Called while the request waits. `again`: when the next call would come without this. Returns
    /// when it must come.
    ///
    /// # Errors
    /// The request must end a deadlock.
    pub fn turn(&mut self, again: Option<Duration>) -> Result<Option<Duration>, Box<Failure>> {
        let Some(run) = self.run else { return Ok(again) };
        let since = *self.since.get_or_insert_with(Instant::now);
        let Some(deadlock_watcher) = &mut self.deadlock_watcher else {
            let left = START_AFTER.saturating_sub(since.elapsed());
            if left.is_zero() {
                self.deadlock_watcher = (self.start)(run, self.tag);
                // Without a deadlock watcher, the request waits as if it were in no run.
                self.run = self.run.filter(|_| self.deadlock_watcher.is_some());
            }
            let after = left.max(LOOK_EVERY);
            return Ok(Some(again.map_or(after, |again| again.min(after))));
        };
        match deadlock_watcher.found() {
            Some(refusal) => Err(Box::new(refusal)),
            None => Ok(Some(again.map_or(LOOK_EVERY, |again| again.min(LOOK_EVERY)))),
        }
    }

    /// The nodes that could not be read, if that is news: a deadlock over them would not be found.
    pub fn unread(&mut self) -> Option<Vec<String>> {
        self.deadlock_watcher.as_mut()?.unread.take()
    }
}

impl<F> fmt::Debug for WaitWithin<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, tag, deadlock_watcher, .. } = self;
        write!(
            f,
            "WaitWithin {{ run: {run:?}, tag: {tag:?}, deadlock_watcher: {deadlock_watcher:?} }}"
        )
    }
}
