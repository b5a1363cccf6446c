//! The limits of a supervised command.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::protocol::OnLost;

/// How long after the signal of `--max-run` SIGKILL follows, without `--kill-after`.
pub const KILL_AFTER_DEFAULT: Duration = Duration::from_secs(10);

/// The limits of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long it may run, from the moment it has the lock; `None` without a limit. The time of a
    /// suspend does not count.
    pub max_run: Option<Duration>,
    /// How long after `signal` SIGKILL follows; with `None`, it never does.
    pub kill_after: Option<Duration>,
    /// The signal that ends a command that ran too long. SIGCONT follows, in case it is stopped.
    pub signal: Signal,
    /// Whether to stay until the command's descendants have ended too; `max_run` also applies to
    /// them.
    pub with_children: bool,
    /// What happens to the command if the lock is lost, which is only possible over an engine.
    pub on_lost: OnLost,
}
