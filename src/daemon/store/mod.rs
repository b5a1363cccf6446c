//! The table, its journal, and the data that survives a reboot.
//!
//! Invariant: a change is recorded before a client is told of it.

pub(super) mod disk_full;
pub(super) mod journal_store;
pub(super) mod lease_store;
pub(super) mod ledger;
pub(super) mod node;
pub(super) mod previous_journal;
pub(super) mod recover;
