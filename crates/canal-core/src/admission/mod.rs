//! Decides whether a request can be granted now, from the slots, the conflicts and the waiters that
//! precede it.
//!
//! Invariant: nothing here changes the table.

pub(crate) mod admit;
pub(crate) mod node_limits;
mod overtaking;
