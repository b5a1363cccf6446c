//! Supervises the command as its parent.
//!
//! The supervisor forks first; the child takes the lock and becomes the command. The supervisor
//! limits the command's time from the grant on, passes on signals, and ends as the command ended.
//! It ends all processes of the command when the hold is lost
//! ([`hold_monitor`](canal_lock::client::hold_monitor)): the second line of defence after the
//! daemon, and the only one if that is stopped or gone.
//!
//! Invariant: the supervisor owns nothing, so its death frees nothing. While the child still waits,
//! it ends with its supervisor and so leaves the queue.

mod caller;
mod child_channel;
mod descendants;
mod fate_query;
mod forwarded_signals;
mod parent;

use std::fs::File;
use std::io;

use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, setpgid};

use canal_lock::client::channel::channel;
use canal_sys::process::child::fork;
use canal_sys::signals;

pub use caller::{Ended, KILL_AFTER_DEFAULT, Limits, SupervisorHooks};
pub use child_channel::ChildChannel;

use descendants::Descendants;
pub(crate) use descendants::kill_with_descendants;
use forwarded_signals::signals_watched;
use parent::{Group, Parent};

/// Forks. The child calls `child`, which takes the lock and becomes the command with
/// [`become_command`](super::become_command()), or returns the exit code to end with. The parent
/// enforces the limits, passes signals on, and returns when the child has ended.
///
/// Call this before opening or starting anything: this process must have one thread, and the parent
/// closes all descriptors but standard error.
///
/// # Errors
/// The fork, or a preparation for it, failed; nothing was started.
pub fn supervise(
    limits: &Limits,
    hooks: &mut dyn SupervisorHooks,
    child: impl FnOnce(ChildChannel) -> u8,
) -> io::Result<Ended> {
    let (ours, childs) = channel()?;
    let childs = ChildChannel::new(childs);
    let group = if has_terminal() { Group::Callers } else { Group::Own };
    let mut descendants = Descendants::unknown();
    if limits.with_children {
        descendants.adopt(None)?;
    }
    // All this comes before the fork, so that no signal and no end is missed.
    let watched = signals_watched();
    let blocked = signals::block(&watched);
    let ignored_ends = signals::set_default(Signal::SIGCHLD)?;
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let forked = fork();
    if let Ok(Some(pid)) = forked {
        drop(childs);
        // Its descriptors belong to the child.
        drop(child);
        let parent = Parent::new(pid, group, *limits, ours, signals, descendants, hooks);
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
    childs.end_with_parent()?;
    if group == Group::Own {
        // The parent does the same; the first of the two calls has the effect.
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    }
    std::process::exit(child(childs).into())
}

/// Whether this process has a controlling terminal: only then can `/dev/tty` be opened.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}
