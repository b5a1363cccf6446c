//! The interface between the supervisor and its caller.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::OwnCode;
use canal_lock::client::Fate;
use canal_lock::client::hold_monitor::LostHold;
use canal_protocol::OnLost;
use canal_sys::signals::{self, SignalRefused};

/// The time from the signal of `--max-run` to SIGKILL, without `--kill-after`.
pub const KILL_AFTER_DEFAULT: Duration = Duration::from_secs(10);

/// The limits of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long it may run, from the moment it has the lock; `None` without a limit. The time of a
    /// suspend does not count.
    pub max_run: Option<Duration>,
    /// The time from `signal` to SIGKILL; `None` if SIGKILL is never sent.
    pub kill_after: Option<Duration>,
    /// The signal that ends a command that ran too long. SIGCONT follows, in case it is stopped.
    pub signal: Signal,
    /// Whether to stay until the command's descendants have ended too; `max_run` also applies to
    /// them.
    pub with_children: bool,
    /// What happens to the command if the lock is lost, which is only possible over an engine.
    pub on_lost: OnLost,
}

/// The supervisor's calls to its caller while the command runs.
pub trait SupervisorHooks {
    /// Whether it is already known that the hold can be lost.
    fn can_be_lost(&self) -> bool {
        false
    }

    /// Reports that the lock is lost, or may be lost from now on. Called once for each loss, before
    /// the supervisor acts on the command.
    fn lost(&mut self, lost: &LostHold);

    /// Reports that the kernel refuses to signal the command, or a process that it started. Called
    /// once for each process.
    fn refused(&mut self, refused: &SignalRefused);

    /// Whether a process is a daemon that a client started. It also serves other clients, so the
    /// supervisor neither waits for it nor ends it.
    fn is_daemon(&self, pid: Pid) -> bool;

    /// Called when the command has ended, before its process is reaped. Until then, the daemon can
    /// read its exit status on every kernel.
    fn ended(&mut self) {}

    /// Asks the present daemon what happened to the hold with this token. Called in a process that
    /// may block.
    fn ask(&self, token: u64) -> Option<Fate>;

    /// The descriptors that the caller needs while the command runs.
    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// The descriptor to poll for the caller.
    fn polled(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The longest time until [`Self::turn`] must be called.
    fn due(&self) -> Option<Duration> {
        None
    }

    /// Called whenever the supervisor wakes. `command` is the child, until it has ended.
    fn turn(&mut self, _command: Option<Pid>) {}
}

/// How a supervised command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit code: the command's, or canal's own if the command was never run.
    Exited(u8),
    /// By a signal.
    Signaled(i32),
    /// It ran too long and was ended; this was the last signal that reached it.
    TimeOver(Signal),
    /// The lock was lost, and the command was ended for that, or could not be signalled.
    LockLost(Box<LostHold>),
}

impl Ended {
    /// Makes this process end in the same way: returns the exit code to end with, or ends this
    /// process by the same signal (without a second core dump).
    #[must_use]
    pub fn pass_on(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::TimeOver(_) => OwnCode::TimeOver.number(),
            Self::LockLost(_) => OwnCode::LockLost.number(),
            Self::Signaled(signal) => signals::die_by(signal),
        }
    }
}
