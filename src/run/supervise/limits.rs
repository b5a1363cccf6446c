//! What a supervised command is held to.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::protocol::OnLost;

/// How long after the signal of `--max-run` SIGKILL follows, if `--kill-after` does not say.
pub const KILL_AFTER_DEFAULT: Duration = Duration::from_secs(10);

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
