//! The log in etcd: appending to it, reading it, and its snapshots.
//!
//! Invariant: a reader gets each batch once, in the order of positions, without a gap.

pub(super) mod append;
pub(super) mod cursor;
pub(super) mod read;
pub(super) mod snapshot;
