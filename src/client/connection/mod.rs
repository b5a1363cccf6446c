//! One connection to a daemon: opening it, calls and replies over it, and how long it may be silent.
//!
//! Invariant: no wait here is longer than its caller said.

pub(super) mod knock;
pub(super) mod silence;
pub(super) mod stream;
