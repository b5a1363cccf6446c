//! The state of the table, and how one outcome changes it.
//!
//! Invariant: nothing here decides. The table carries out an entry or a recorded outcome, and keeps
//! its indexes consistent with its frames, holds and waiters.

mod frames;
mod holds;
mod hosts;
mod leases;
mod locks;
mod queues;
mod recovery;
mod snapshot;
pub(crate) mod table;
mod waiters;

pub use table::Table;
