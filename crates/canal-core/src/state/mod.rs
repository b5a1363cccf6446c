//! The state of the table, and how one outcome changes it.
//!
//! Invariant: nothing here decides. The table carries out an entry or a recorded outcome, and keeps
//! its indexes consistent with its frames, holds and waiters.

mod applicable_size;
mod holds;
mod hosts;
pub(crate) mod leases;
mod nested_frames;
mod queues;
mod recovery;
mod snapshot_and_restore;
pub(crate) mod table;
mod waiters;

pub use table::Table;
