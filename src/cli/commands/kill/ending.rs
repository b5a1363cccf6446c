//! Ends a process with those that it has started, and waits until they have ended.
//!
//! Invariant: a process is signalled only through a pidfd that was opened while it descended from
//! the process that was shown, or was an orphan of its group. The process that was shown gets its
//! first signal from the daemon, which sends none if that process no longer holds or waits.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::sanitize::{command_line, cut};
use crate::cli::user_name;
use crate::cli::wording::participant::{self, COMMAND_COLUMNS};
use crate::client::{Client, ClientError, OWN, is_on_demand_daemon};
use crate::protocol::{ErrorName, Kill, KillTarget};
use crate::sys::pidfd::{Pidfd, is_gone};
use crate::sys::process::{self, add_descendants, add_orphans_of_group, uid_of};

/// How often canal looks for processes that were started meanwhile.
const LOOK: Duration = Duration::from_millis(500);

/// A holder or waiter, and the processes that it has started.
#[derive(Debug)]
pub(in crate::cli) struct Ending<'a> {
    pub(super) target: &'a KillTarget,
    /// First the process itself; its number is 0 if it has none here. Empty if it cannot be known.
    tree: Vec<(u32, Pidfd)>,
    /// Those that canal may not signal, which was reported.
    refused: BTreeSet<u32>,
}

impl<'a> Ending<'a> {
    /// The processes as they are now.
    pub(in crate::cli) fn find(
        client: &mut Client,
        target: &'a KillTarget,
    ) -> Result<Self, Failed> {
        let kill = kill(target, Signal::SIGTERM);
        let process = match client.process_to_kill(&kill) {
            Ok(process) => process,
            // The order that follows says what has changed.
            Err(ClientError::Failure(failure)) if failure.name == ErrorName::NotHeld => None,
            Err(error) => return Err(connect::failed(error)),
        };
        let tree = process.and_then(|process| Some((process.pid()?, process)));
        let tree = tree.into_iter().collect();
        let mut ending = Self { target, tree, refused: BTreeSet::new() };
        ending.look();
        Ok(ending)
    }

    /// How many processes it has started that still run.
    pub(super) fn started(&self) -> usize {
        self.tree.iter().skip(1).filter(|(_, it)| !it.has_ended()).count()
    }

    /// Signals the process, and if the signal is meant to end it, all that it has started. Returns
    /// what could not be signalled.
    pub(in crate::cli) fn signal(
        &mut self,
        client: &mut Client,
        signal: Signal,
    ) -> Result<Vec<String>, Failed> {
        // The orphans of a process that has ended would not be found.
        self.look();
        match client.kill(&kill(self.target, signal)) {
            Ok(_) => {}
            Err(ClientError::Gone) => {
                let message =
                    "the daemon went away before it answered; it may have sent the signal";
                return Err(Failed::new(message));
            }
            Err(error) => return Err(connect::failed(error)),
        }
        if !ends(signal) {
            return Ok(Vec::new());
        }
        let (_, refused) = self.send(1, signal);
        // A stopped process sees the signal only when it runs again.
        for (_, process) in &self.tree {
            let _ = process.signal(Signal::SIGCONT);
        }
        Ok(refused)
    }

    /// Kills what is left. Returns what was killed, and what could not be and was not reported yet.
    pub(super) fn kill_left(&mut self) -> (Vec<Left>, Vec<String>) {
        self.look();
        self.send(0, Signal::SIGKILL)
    }

    /// The processes that still run.
    pub(super) fn left(&self) -> Vec<Left> {
        self.living().map(|(pid, _)| Left::of(*pid)).collect()
    }

    /// Whether canal may not signal this one.
    pub(super) fn is_refused(&self, left: &Left) -> bool {
        self.refused.contains(&left.pid)
    }

    /// Signals the processes from the one with this number on. Returns what was signalled, and what
    /// could not be and was not reported yet.
    fn send(&mut self, first: usize, signal: Signal) -> (Vec<Left>, Vec<String>) {
        let (mut sent, mut refused) = (Vec::new(), Vec::new());
        for (pid, process) in self.tree.iter().skip(first).filter(|(_, it)| !it.has_ended()) {
            // A killed process may have no command line left to read.
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
            Some(command) => {
                format!("pid {} `{}`", self.pid, cut(&command_line(command), COMMAND_COLUMNS))
            }
            None => participant::process(self.pid),
        }
    }
}

/// Waits until all of them have ended, or until the time is over. Returns whether they have.
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
        // One of them is enough: the others are looked at in the next round.
        let mut polled: Vec<_> = left
            .first()
            .map(|(_, it)| PollFd::new(it.as_fd(), PollFlags::POLLIN))
            .into_iter()
            .collect();
        // An interrupted wait is one that was too short.
        let _ = poll(&mut polled, pause);
        for ending in endings.iter_mut() {
            ending.look();
        }
    }
}

/// Whether a signal is one by which people end a command. Others (HUP, USR1, STOP …) mean something
/// to the process itself only: sent to all that it has started, they would end what does not know
/// them.
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

/// This process itself, which may run under the lock, and a daemon that serves others as well.
fn is_spared(pid: u32) -> bool {
    pid == std::process::id() || is_on_demand_daemon(pid, Some(Path::new(OWN)))
}

fn kill(target: &KillTarget, signal: Signal) -> Kill {
    Kill { token: target.token, request: target.request, signal: signal as i32 }
}
