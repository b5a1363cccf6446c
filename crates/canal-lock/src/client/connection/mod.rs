//! One connection to a daemon: opens it, carries calls and replies, and bounds the daemon's
//! silence.
//!
//! Invariant: no wait takes longer than its caller allowed.

pub(super) mod connect;
pub(super) mod silence;
pub(super) mod stream;
