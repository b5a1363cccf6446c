//! Staying as the command's parent.
//!
//! The parent forks before anything else. The child takes the lock and becomes the command; the
//! parent only looks on: it keeps the time from the moment that the lock is held, passes on the
//! signals that were meant for the command, and ends as the command ended. It is not the owner of
//! anything, so that its death changes nothing.
//!
//! With a controlling terminal the command stays in the caller's process group: it can read from
//! the terminal, and gets what is typed (Ctrl-C, Ctrl-Z) by itself. Without one it leads a group of
//! its own, so that what it starts can be ended with it.

mod descendants;
mod parent;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{Pid, setpgid};

use crate::sys::child::fork;
use crate::sys::{fds, process, signals};

use descendants::Descendants;
use parent::{Group, Parent, signals_watched};

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
}

/// The child's end of the channel to its parent; close-on-exec.
#[derive(Debug)]
pub struct Starting(OwnedFd);

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit code: the command's, or canal's own if the command was never run.
    Exited(u8),
    /// By a signal.
    Signaled(i32),
    /// It ran too long and was ended, in the end by this signal.
    TimeOver(Signal),
}

impl Starting {
    /// Tells the parent that the lock is held and the command starts. `children` is what keeps
    /// the hold: the parent has it too then.
    #[must_use = "the channel is to close when the command has begun or failed to"]
    pub fn granted(self, children: Option<&OwnedFd>) -> Self {
        let children = children.map(AsFd::as_fd);
        // Without a parent there is nobody to tell, and nothing depends on it.
        let _ = fds::send(self.0.as_fd(), parent::GRANTED, children.as_slice(), 0);
        self
    }
}

impl Ended {
    /// Passes it on: returns the exit code to end with, or ends this process by the same signal
    /// (without a second core dump).
    #[must_use]
    pub fn pass_on(self) -> ExitCode {
        match self {
            Self::Exited(code) => code.into(),
            Self::TimeOver(_) => super::OwnCode::TimeOver.into(),
            Self::Signaled(signal) => {
                signals::die_by(signal);
                // As a shell says it.
                ExitCode::from(128_u8.wrapping_add(signal.to_le_bytes()[0]))
            }
        }
    }
}

/// Forks; the child calls `child`, which takes the lock and becomes the command with
/// [`become_command`](super::become_command), or returns the exit code to end with. The parent
/// keeps to the limits, passes signals on, and returns when the child has ended.
///
/// To be called before anything is opened or started: this process must have one thread, and the
/// parent closes all descriptors but standard error.
///
/// # Errors
/// The fork, or what it needs, failed; nothing was started then.
pub fn stay(limits: &Limits, child: impl FnOnce(Starting) -> u8) -> io::Result<Ended> {
    let (ours, childs) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    let group = if has_terminal() { Group::Callers } else { Group::Own };
    let descendants = Descendants::new(limits.with_children)?;
    if limits.with_children {
        process::become_subreaper()?;
    }
    // All this before the fork, so that no signal and no end falls into a gap.
    let mut mask = SigSet::empty();
    let watched = signals_watched();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&watched), Some(&mut mask))?;
    let ignored_ends = signals::set_default(Signal::SIGCHLD)?;
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let forked = fork();
    if let Ok(Some(pid)) = forked {
        drop(childs);
        let parent = Parent::new(pid, group, *limits, ours, signals, descendants);
        let ended = parent.run();
        mask.thread_set_mask()?;
        return ended;
    }
    drop((ours, signals));
    if ignored_ends {
        signals::set_ignored(Signal::SIGCHLD)?;
    }
    mask.thread_set_mask()?;
    forked?;
    if group == Group::Own {
        // The parent does the same; whoever comes first.
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    }
    std::process::exit(child(Starting(childs)).into())
}

/// Whether this process has a controlling terminal: only then can `/dev/tty` be opened.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}
