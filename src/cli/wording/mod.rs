//! Writes canal's sentences about holders, waiters, refusals, deadlocks and lost locks.
//!
//! Invariant: text from other processes goes through [`sanitize`](super::output::sanitize) before
//! it becomes part of a message.

pub(super) mod deadlock;
pub(super) mod estimate;
pub(super) mod hold_lost;
pub(super) mod lease_lost;
pub(super) mod machine_daemon;
pub(super) mod not_acquired;
pub(super) mod on_nodes;
pub(super) mod participant;
pub(super) mod separation;
pub(super) mod time;
pub(super) mod usage_error;
