//! The log in etcd: appending to it, reading it, and snapshots of it.
//!
//! Invariant: a reader gets each batch once, in the order of positions, and none is left out.

pub(super) mod append;
pub(super) mod cursor;
pub(super) mod read;
pub(super) mod snapshot;
