//! The state of the table, and how one outcome changes it.
//!
//! Invariant: nothing here decides. The table carries out what an entry or a recorded outcome says,
//! and keeps its indexes equal to its frames, holds and waiters.

mod frames;
mod holds;
mod hosts;
mod leases;
mod owners;
mod recovery;
mod snapshot;
pub(in crate::core) mod table;
mod waiters;

pub use hosts::HostState;
pub use leases::{LeaseEnd, LeaseState, PAST_LEASES_MAX, PastLease};
pub use recovery::Recovery;
pub use snapshot::{
    FrameState, HeldItem, HoldState, Snapshot, StoredView, WaiterState, WaiterStatus,
};
pub use table::{BYPASS_MAX_DEFAULT, Diverged, Table};
