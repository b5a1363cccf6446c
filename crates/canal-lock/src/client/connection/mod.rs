//! The connection to a daemon: opens it, starts a daemon where none runs, carries calls and
//! replies, and bounds the daemon's silence.
//!
//! Invariant: no wait takes longer than its caller allowed.

pub(super) mod daemon_program;
pub(super) mod options;
pub(super) mod start_daemon;
pub(super) mod stream;
pub(super) mod time_limits;
