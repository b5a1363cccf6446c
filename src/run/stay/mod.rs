//! Staying as the command's parent.
//!
//! The parent forks before anything else. The child takes the lock and becomes the command; the
//! parent only looks on: it keeps the time from the moment that the lock is held, passes on the
//! signals that were meant for the command, and ends as the command ended. It is not the owner of
//! anything, so that its death changes nothing.
//!
//! Over an engine a lock can be lost. Then the child gets a deadline page with its lock, and hands it
//! on to the parent before it becomes the command. The parent ends the command, and all that it
//! started, when the page says so ([`watch`]): the second line after the daemon, and the only one
//! if the daemon is stopped or gone.
//!
//! With a controlling terminal the command stays in the caller's process group: it can read from
//! the terminal, and gets what is typed (Ctrl-C, Ctrl-Z) by itself. Without one it leads a group of
//! its own, so that what it starts can be ended with it.

mod asker;
mod channel;
mod descendants;
mod parent;
mod passed_on;
mod tree;
mod watch;

use std::fs::File;
use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, setpgid};

use super::Lost;
use crate::protocol::OnLost;
use crate::sys::child::fork;
use crate::sys::deadline::{Reader, Why};
use crate::sys::signals;

pub use channel::Starting;

use channel::channel;
use descendants::Descendants;
use parent::{Group, Parent};
use passed_on::signals_watched;

/// What a command is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long it may run, from the moment it has the lock; `None` for ever. Time during which
    /// the machine sleeps does not count.
    pub max_run: Option<Duration>,
    /// How long after `signal` SIGKILL follows; `None` never.
    pub kill_after: Option<Duration>,
    /// What ends a command that ran too long. SIGCONT follows, in case it is stopped.
    pub signal: Signal,
    /// Stay until the command's descendants have ended too; they are held to `max_run` as well.
    pub with_children: bool,
    /// What becomes of it if the lock is lost, which is only possible over an engine.
    pub on_lost: OnLost,
}

/// What stands beside a command while it runs, besides the parent itself.
pub trait Beside {
    /// Whether it is known already that the hold will be one that can be lost.
    fn can_be_lost(&self) -> bool {
        false
    }

    /// The lock is lost, or may be from now on: to be told to people. Called once for each loss,
    /// before anything is done to the command.
    fn lost(&mut self, lost: &Lost);

    /// Whether a process is a daemon that some client started: it serves others as well, so that it
    /// is neither waited for nor ended.
    fn is_daemon(&self, pid: Pid) -> bool;

    /// Asks the daemon that there is now what became of the hold with this token. Called where it
    /// may take its time.
    fn ask(&self, token: u64) -> Option<Fate>;
}

/// What became of a hold whose deadline page nobody writes any more.
#[derive(Debug)]
pub enum Fate {
    /// The daemon that there is now has taken it over, and writes this page.
    Held(Reader),
    /// It is lost.
    Lost(Why),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit code: the command's, or canal's own if the command was never run.
    Exited(u8),
    /// By a signal.
    Signaled(i32),
    /// It ran too long and was ended, in the end by this signal.
    TimeOver(Signal),
    /// The lock was lost, and it was ended for that.
    LockLost(Box<Lost>),
}

impl Ended {
    /// Passes it on: returns the exit code to end with, or ends this process by the same signal
    /// (without a second core dump).
    #[must_use]
    pub fn pass_on(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::TimeOver(_) => super::OwnCode::TimeOver.number(),
            Self::LockLost(_) => super::OwnCode::LockLost.number(),
            Self::Signaled(signal) => {
                signals::die_by(signal);
                // As a shell says it.
                128_u8.wrapping_add(signal.to_le_bytes()[0])
            }
        }
    }
}

/// Forks; the child calls `child`, which takes the lock and becomes the command with
/// [`become_command`](super::become_command()), or returns the exit code to end with. The parent
/// keeps to the limits, passes signals on, and returns when the child has ended.
///
/// To be called before anything is opened or started: this process must have one thread, and the
/// parent closes all descriptors but standard error.
///
/// # Errors
/// The fork, or what it needs, failed; nothing was started then.
pub fn stay(
    limits: &Limits,
    beside: &mut dyn Beside,
    child: impl FnOnce(Starting) -> u8,
) -> io::Result<Ended> {
    let (ours, childs) = channel()?;
    let group = if has_terminal() { Group::Callers } else { Group::Own };
    let mut descendants = Descendants::unknown();
    if limits.with_children {
        descendants.adopt(None)?;
    }
    // All this before the fork, so that no signal and no end falls into a gap.
    let watched = signals_watched();
    let blocked = signals::block(&watched);
    let ignored_ends = signals::set_default(Signal::SIGCHLD)?;
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let forked = fork();
    if let Ok(Some(pid)) = forked {
        drop(childs);
        let parent = Parent::new(pid, group, *limits, ours, signals, descendants, beside);
        let ended = parent.run();
        blocked.restore();
        return ended;
    }
    drop((ours, signals));
    if ignored_ends {
        signals::set_ignored(Signal::SIGCHLD)?;
    }
    blocked.restore();
    forked?;
    if group == Group::Own {
        // The parent does the same; whoever comes first.
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    }
    std::process::exit(child(childs).into())
}

/// Whether this process has a controlling terminal: only then can `/dev/tty` be opened.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}
