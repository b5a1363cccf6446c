//! A connection to an etcd: its address, its messages, transactions and watches, and what goes wrong.
//!
//! Invariant: every call ends within the bound on one call.

pub(super) mod address;
pub(super) mod client;
pub(super) mod error;
pub(super) mod messages;
pub(super) mod transaction;
pub(super) mod watch;
pub(super) mod witness;
