//! Staying as the command's parent.

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::Signal;

/// What a command is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long it may run, from the moment it has the lock and starts; `None` for ever.
    pub max_run: Option<Duration>,
    /// How long after `signal` SIGKILL follows; `None` never.
    pub kill_after: Option<Duration>,
    /// What ends a command that ran too long.
    pub signal: Signal,
    /// Stay until the command's descendants have ended too.
    pub with_children: bool,
}

/// The child's end of the channel to its parent; closes with the exec.
#[derive(Debug)]
pub struct Starting(OwnedFd);

/// How the child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit code: the command's, or canal's own if the command was never run.
    Exited(u8),
    /// By a signal.
    Signaled(Signal),
    /// It ran too long and was ended, in the end by this signal.
    TimeOver(Signal),
}

impl Starting {
    /// Tells the parent that the lock is held and the command starts.
    pub(super) fn granted(self, children: Option<&OwnedFd>) -> Self {
        let _ = children;
        todo!()
    }
}

impl Ended {
    /// Passes it on: the exit code to end with, or does not return but ends this process by the
    /// same signal, without a second core dump.
    #[must_use]
    pub fn pass_on(self) -> ExitCode {
        todo!()
    }
}

/// Forks; the child calls `child`, which takes the lock and becomes the command with
/// [`become_command`](super::become_command), or returns the exit code to end with. The parent
/// keeps to the limits, passes signals on, and returns when the child has ended.
///
/// # Errors
/// The fork, or what it needs, failed; nothing was started then.
pub fn stay(limits: &Limits, child: impl FnOnce(Starting) -> u8) -> io::Result<Ended> {
    let _ = (limits, child);
    todo!()
}
