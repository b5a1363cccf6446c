//! Ends a process and the processes that it started, and waits until all have ended.
//!
//! Invariant: canal signals a process only through a pidfd that it opened while the process was a
//! descendant of the process shown, or an orphan of its group. The daemon sends the first signal to
//! the process shown, and sends none if that process no longer holds or waits.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::cli::wording::participant::{self, short_command};
use crate::cli::{Failed, Result, user_name};
use crate::client::{Client, ClientError, OWN, is_on_demand_daemon};
use crate::protocol::{ErrorName, Kill, KillTarget};
use crate::sys::pidfd::{Pidfd, is_gone};
use crate::sys::process::{self, add_descendants, add_orphans_of_group, uid_of};

/// How often canal looks for newly started processes.
const LOOK: Duration = Duration::from_millis(500);

/// A holder or waiter, and the processes that it has started.
#[derive(Debug)]
pub(crate) struct Ending<'a> {
    pub(super) target: &'a KillTarget,
    /// The processes, starting with the holder or waiter itself, whose pid is 0 if it has none
    /// here. Empty if it cannot be known.
    tree: Vec<(u32, Pidfd)>,
    /// The processes that canal may not signal, and has reported.
    refused: BTreeSet<u32>,
}

impl<'a> Ending<'a> {
    /// Finds the processes as they are now.
    pub(crate) fn find(client: &mut Client, target: &'a KillTarget) -> Result<Self> {
        let kill = kill(target, Signal::SIGTERM);
        let process = match client.process_to_kill(&kill) {
            Ok(process) => process,
            // The signal that follows reports what has changed.
            Err(ClientError::Failure(failure)) if failure.name == ErrorName::NotHeld => None,
            Err(error) => return Err(error.into()),
        };
        let tree = process.and_then(|process| Some((process.pid()?, process)));
        let tree = tree.into_iter().collect();
        let mut ending = Self { target, tree, refused: BTreeSet::new() };
        ending.look();
        Ok(ending)
    }

    /// How many of the processes that it started are still running.
    pub(super) fn started(&self) -> usize {
        self.tree.iter().skip(1).filter(|(_, it)| !it.has_ended()).count()
    }

    /// Signals the process. If the signal ends commands, also signals all processes that it
    /// started. Returns the errors for those that could not be signalled.
    pub(crate) fn signal(&mut self, client: &mut Client, signal: Signal) -> Result<Vec<String>> {
        // Once a process has ended, its orphans can no longer be found.
        self.look();
        match client.kill(&kill(self.target, signal)) {
            Ok(_) => {}
            Err(ClientError::Gone) => {
                let message = "the daemon ended before it answered; it may have sent the signal";
                return Err(Failed::new(message));
            }
            Err(error) => return Err(error.into()),
        }
        if !ends(signal) {
            return Ok(Vec::new());
        }
        let (_, refused) = self.send(1, signal);
        // A stopped process handles the signal only after it continues.
        for (_, process) in &self.tree {
            let _ = process.signal(Signal::SIGCONT);
        }
        Ok(refused)
    }

    /// Kills the remaining processes. Returns those that were killed, and the errors that were not
    /// reported yet.
    pub(super) fn kill_left(&mut self) -> (Vec<Left>, Vec<String>) {
        self.look();
        self.send(0, Signal::SIGKILL)
    }

    /// The processes that still run.
    pub(super) fn left(&self) -> Vec<Left> {
        self.living().map(|(pid, _)| Left::of(*pid)).collect()
    }

    /// Whether canal may not signal this process.
    pub(super) fn is_refused(&self, left: &Left) -> bool {
        self.refused.contains(&left.pid)
    }

    /// Signals the processes from index `first` on. Returns those that were signalled, and the
    /// errors that were not reported yet.
    fn send(&mut self, first: usize, signal: Signal) -> (Vec<Left>, Vec<String>) {
        let (mut sent, mut refused) = (Vec::new(), Vec::new());
        for (pid, process) in self.tree.iter().skip(first).filter(|(_, it)| !it.has_ended()) {
            // A killed process may no longer have a command line.
            let named = Left::of(*pid);
            match process.signal(signal) {
                Ok(()) => sent.push(named),
                Err(error) if is_gone(&error) => {}
                Err(error) if self.refused.insert(*pid) => {
                    refused.push(refusal(*pid, process, &error));
                }
                Err(_) => {}
            }
        }
        (sent, refused)
    }

    fn living(&self) -> impl Iterator<Item = &(u32, Pidfd)> {
        self.tree.iter().filter(|(_, it)| !it.has_ended())
    }

    fn look(&mut self) {
        add_descendants(&mut self.tree, is_spared);
        if let Some(leader) = self.tree.first().map(|(pid, _)| *pid) {
            add_orphans_of_group(&mut self.tree, leader, is_spared);
            add_descendants(&mut self.tree, is_spared);
        }
    }
}

/// A process that still runs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(super) struct Left {
    pub(super) pid: u32,
    pub(super) command: Option<String>,
}

impl Left {
    fn of(pid: u32) -> Self {
        Self { pid, command: process::command_line(pid) }
    }

    /// `pid 812 `make test``.
    pub(super) fn shown(&self) -> String {
        match &self.command {
            Some(command) => format!("pid {} `{}`", self.pid, short_command(command)),
            None => participant::process(self.pid),
        }
    }
}

/// Waits until all these processes have ended, or until the time is over. Returns whether they have
/// ended.
pub(super) fn wait(endings: &mut [Ending<'_>], time: Option<Duration>) -> bool {
    let until = time.and_then(|time| Instant::now().checked_add(time));
    loop {
        let left: Vec<&(u32, Pidfd)> = endings.iter().flat_map(Ending::living).collect();
        let now = Instant::now();
        if left.is_empty() || until.is_some_and(|until| now >= until) {
            return left.is_empty();
        }
        let pause = until.map_or(LOOK, |until| (until - now).min(LOOK));
        let pause = PollTimeout::try_from(pause).unwrap_or(PollTimeout::MAX);
        // One of them is enough, because the next round examines the others.
        let mut polled: Vec<_> = left
            .first()
            .map(|(_, it)| PollFd::new(it.as_fd(), PollFlags::POLLIN))
            .into_iter()
            .collect();
        // If the wait is interrupted, it is merely shorter.
        let _ = poll(&mut polled, pause);
        for ending in endings.iter_mut() {
            ending.look();
        }
    }
}

/// Whether users normally end a command with this signal. Other signals (HUP, USR1, STOP …) only
/// have a meaning for the process itself: sent to all descendants, they would end those that do not
/// expect them.
pub(super) fn ends(signal: Signal) -> bool {
    use Signal::{SIGABRT, SIGINT, SIGKILL, SIGQUIT, SIGTERM};
    matches!(signal, SIGTERM | SIGINT | SIGQUIT | SIGABRT | SIGKILL)
}

fn refusal(pid: u32, process: &Pidfd, error: &io::Error) -> String {
    let shown = Left::of(pid).shown();
    match uid_of(process).filter(|_| error.kind() == io::ErrorKind::PermissionDenied) {
        Some(uid) => format!("cannot signal {shown}: it runs as {}", user_name::name(uid)),
        None => format!("cannot signal {shown}: {error}"),
    }
}

/// Whether the process is this one, which may run under the lock, or a daemon, which also serves
/// other clients.
fn is_spared(pid: u32) -> bool {
    pid == std::process::id() || is_on_demand_daemon(pid, Some(Path::new(OWN)))
}

fn kill(target: &KillTarget, signal: Signal) -> Kill {
    Kill { token: target.token, request: target.request, signal: signal as i32 }
}
