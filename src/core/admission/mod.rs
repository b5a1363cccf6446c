//! Decides whether a request can be granted now, from the slots, the conflicts and the waiters that
//! precede it.
//!
//! Invariant: nothing here changes the table.

pub(in crate::core) mod admit;
pub(in crate::core) mod over_nodes;
mod overtaking;
