//! The look at waiters that stand before others: one whose process is stopped bars nobody.

use std::time::Instant;

use crate::core::RequestId;
use crate::sys::process::{RunState, run_state};

/// The look at those who wait behind others, which goes on over several turns where many wait.
#[derive(Debug, Default)]
pub(crate) struct LookAhead {
    /// When it goes on.
    pub(crate) due: Option<Instant>,
    /// The last waiter that was looked at.
    pub(crate) last: Option<RequestId>,
    /// Whether somebody was found behind a waiter since the look began with the first one.
    pub(crate) behind: bool,
}

/// Whether a process is stopped or frozen.
pub(crate) fn is_stopped(pid: u32) -> bool {
    matches!(run_state(pid), RunState::Stopped | RunState::Frozen)
}
