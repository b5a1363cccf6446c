//! Deadlocks: sessions that hold something and wait for each other.
//!
//! Invariant: a deadlock ends in the entry that closes it, with a refusal of its youngest waiter.

mod detect;
pub(in crate::core) mod reachable;
mod reduction;
