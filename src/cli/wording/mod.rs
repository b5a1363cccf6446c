//! Writes canal's sentences about holders, waiters, refusals, deadlocks and lost locks.
//!
//! Invariant: text from other processes goes through [`sanitize`](super::output::sanitize) before
//! it becomes part of a message.

pub(super) mod deadlock;
pub(super) mod holders_and_waiters;
pub(super) mod lost;
pub(super) mod print_refusal;
pub(super) mod separate_daemons;
pub(super) mod time;
pub(super) mod usage_error;
pub(super) mod waiting;
