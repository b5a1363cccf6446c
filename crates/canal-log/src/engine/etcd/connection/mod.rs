//! A connection to an etcd: its address, messages, transactions, watches and errors.
//!
//! Invariant: every call ends within the bound on one call.

pub(super) mod address;
pub(super) mod client;
pub(super) mod error;
pub(super) mod messages;
pub(super) mod transaction;
pub(super) mod watch;
