//! The table, its journal, and the data that survives a reboot.
//!
//! Invariant: the daemon records a change before it reports it to a client.

pub(super) mod lease_store;
pub(crate) mod node_identity;
pub(super) mod previous_journal;
pub(super) mod recover;
pub(super) mod table_and_log;
