//! Whether a request can be granted now: the slots, the conflicts, and the waiters that go first.
//!
//! Invariant: nothing here changes the table.

pub(in crate::core) mod admit;
pub(in crate::core) mod over_nodes;
mod overtaking;
