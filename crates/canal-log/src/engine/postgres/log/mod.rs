//! The log in PostgreSQL: appending to it, reading it, and its snapshots.
//!
//! Invariant: a reader gets each batch once, in the order of positions, without gaps.

pub(super) mod append;
pub(super) mod read;
pub(super) mod snapshot;
