//! Checks the waiters ahead of others: a waiter whose process is stopped must not block them.

use std::time::Instant;

use canal_core::RequestId;
use canal_sys::process::{RunState, run_state};

/// The check of waiters that are behind others. If many wait, it takes several turns.
#[derive(Debug, Default)]
pub(crate) struct CheckAhead {
    /// When it continues.
    pub due: Option<Instant>,
    /// The last waiter that was checked.
    pub last: Option<RequestId>,
    /// Whether a waiter was found behind another since the check began with the first waiter.
    pub behind: bool,
}

/// Whether a process is stopped or frozen.
pub(crate) fn is_stopped(pid: u32) -> bool {
    matches!(run_state(pid), RunState::Stopped | RunState::Frozen)
}
