//! What only a daemon with an engine needs: this host is a member of a table that many hosts share.
//!
//! Invariant: no command outlives the time at which another host may be granted what the command
//! holds.

pub(super) mod end_commands;
pub(super) mod engine;
pub(super) mod engine_driver;
pub(super) mod engine_mark;
pub(super) mod engine_status;
pub(super) mod follow;
pub(super) mod health;
pub(super) mod join;
pub(super) mod recovering;
pub(super) mod terminator;
pub(super) mod told_tokens;
pub(super) mod watcher;
