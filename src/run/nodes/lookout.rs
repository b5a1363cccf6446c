//! Looks for deadlocks over nodes on behalf of a process that waits for a plain lock within a run
//! over nodes.
//!
//! It is a process of its own, but not a child of the waiting process: that one becomes its
//! command, which must not find a child that it did not start. It ends with their channel, as soon
//! as the other process continues or ends.

use std::ffi::OsString;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{self, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout};
use serde::{Deserialize, Serialize};

use crate::protocol::{Acquire, CycleStepInfo, ErrorName, Failure, RunId, Tag};
use crate::run::nodes::channel::{End, Received, channel};
use crate::run::nodes::process::stand_alone;
use crate::sys::clock::boottime_ms;
use crate::sys::fds;
use crate::sys::process::child::{Reap, ended, fork};

use super::looking::{Around, GiveWay, Looking};

/// The longest sleep: the clock of poll(2) stops while the machine is suspended.
const SLEEP_MS_MAX: u64 = 1000;

/// How long the request waits before it starts a process that looks.
const START_AFTER: Duration = Duration::from_secs(1);

/// How often to check for a deadlock.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A process that looks for deadlocks.
#[derive(Debug)]
pub struct Lookout {
    channel: End,
    unread: Option<Vec<String>>,
}

/// The result of the process that looks.
#[derive(Serialize, Deserialize)]
enum Found {
    Deadlock {
        /// The deadlock, as text for the user.
        message: String,
        /// The ring, the waiting request first.
        cycle: Vec<CycleStepInfo>,
    },
    /// These nodes cannot be read, so a deadlock over them would not be found.
    Unread(Vec<String>),
}

impl Lookout {
    /// Begins to look for the request of this tag, which waits at the daemon of this machine within
    /// a run over nodes. This process must have one thread.
    ///
    /// # Errors
    /// No process can be started.
    pub fn start(around: &Around, run: RunId, tag: Tag) -> io::Result<Self> {
        let (ours, theirs) = channel()?;
        let Some(between) = fork()? else {
            drop(ours);
            if let Ok(None) = fork() {
                look(around, run, tag, &theirs);
            }
            process::exit(0);
        };
        // If its parent ignores SIGCHLD, the kernel has reaped it.
        let _ = waitpid(between, None);
        Ok(Self { channel: ours, unread: None })
    }

    /// The same for a process that may have several threads: `program`, which is canal, looks. It
    /// takes its socket and the run from `args` and from the environment.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_program(program: &Path, args: &[OsString], tag: Tag) -> io::Result<Self> {
        let (ours, theirs) = channel()?;
        ours.send(&tag, None);
        let mut command = process::Command::new(program);
        command.arg("lookout").args(args).stdin(OwnedFd::from(theirs));
        let mut between = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // If this process ignores SIGCHLD, the kernel has reaped it.
        let _ = between.wait();
        Ok(Self { channel: ours, unread: None })
    }

    /// The part of [`start_program`](Self::start_program) that `program` executes: it starts a
    /// process that looks and is not a child of the waiting one. Standard input is the channel.
    ///
    /// # Errors
    /// No process can be started.
    pub fn serve(around: &Around, run: RunId) -> io::Result<()> {
        let channel = End::from(io::stdin().as_fd().try_clone_to_owned()?);
        let Received::Message(tag, _) = channel.receive() else { return Ok(()) };
        if fork()?.is_none() {
            look(around, run, tag, &channel);
            process::exit(0);
        }
        Ok(())
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

fn look(around: &Around, run: RunId, tag: Tag, channel: &End) {
    stand_alone();
    fds::close_from_except(3, &[channel.as_fd()]);
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
    }
    let mut looking = Looking::of_plain(around, run, tag);
    let mut ending: Vec<Pid> = Vec::new();
    loop {
        let found = looking.turn(true, boottime_ms());
        if let Some(GiveWay::Refusal { why, cycle }) = found {
            channel.send(&Found::Deadlock { message: why, cycle }, None);
            return;
        }
        if let Some(nodes) = looking.news.take() {
            channel.send(&Found::Unread(nodes), None);
        }
        ending.append(&mut looking.closed);
        ending.retain(|pid| matches!(ended(*pid, Reap::Now), Ok(None)));
        let due = looking.wake_at.map_or(u64::MAX, |at| at.saturating_sub(boottime_ms()));
        let patience = due.min(looking.patience_ms()).min(SLEEP_MS_MAX);
        let own = PollFd::new(channel.as_fd(), PollFlags::POLLIN);
        let mut polled: Vec<PollFd<'_>> = looking.polled().chain([own]).collect();
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut polled, timeout);
        if let Received::End = channel.receive::<Found>() {
            return;
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
    lookout: Option<Lookout>,
    start: F,
}

impl<F: FnMut(RunId, Tag) -> Option<Lookout>> WaitWithin<F> {
    /// `start` begins to look, if that is possible here.
    pub fn new(request: &Acquire, start: F) -> Self {
        let Acquire { under_run: run, tag, .. } = *request;
        Self { run, tag, since: None, lookout: None, start }
    }

    /// Called while the request waits. `again`: when the next call would come without this. Returns
    /// when it must come.
    ///
    /// # Errors
    /// The request must end a deadlock.
    pub fn turn(&mut self, again: Option<Duration>) -> Result<Option<Duration>, Box<Failure>> {
        let Some(run) = self.run else { return Ok(again) };
        let since = *self.since.get_or_insert_with(Instant::now);
        let Some(lookout) = &mut self.lookout else {
            let left = START_AFTER.saturating_sub(since.elapsed());
            if left.is_zero() {
                self.lookout = (self.start)(run, self.tag);
                // Without a lookout, the request waits as if it were in no run.
                self.run = self.run.filter(|_| self.lookout.is_some());
            }
            let after = left.max(LOOK_EVERY);
            return Ok(Some(again.map_or(after, |again| again.min(after))));
        };
        match lookout.found() {
            Some(refusal) => Err(Box::new(refusal)),
            None => Ok(Some(again.map_or(LOOK_EVERY, |again| again.min(LOOK_EVERY)))),
        }
    }

    /// The nodes that could not be read, if that is news: a deadlock over them would not be found.
    pub fn unread(&mut self) -> Option<Vec<String>> {
        self.lookout.as_mut()?.unread.take()
    }
}

impl<F> fmt::Debug for WaitWithin<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, tag, lookout, .. } = self;
        write!(f, "WaitWithin {{ run: {run:?}, tag: {tag:?}, lookout: {lookout:?} }}")
    }
}
