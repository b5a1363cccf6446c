//! The table, its journal, and what survives a reboot.
//!
//! Invariant: what is told was recorded before.

pub(super) mod journal_store;
pub(super) mod lease_store;
pub(super) mod ledger;
pub(super) mod previous_journal;
pub(super) mod recover;
