//! The connection to a daemon: opens it, starts a daemon where none runs, carries calls and
//! replies, and bounds the daemon's silence.
//!
//! Invariant: no wait takes longer than its caller allowed.

pub(super) mod program;
pub(super) mod silence;
pub(super) mod start_daemon;
pub(super) mod stream;
