//! From one state to the next: an entry is applied, and everything that follows from it is decided.
//!
//! Invariant: an entry is applied to its end. When `Table::apply` returns, no waiter is left that
//! could be granted, no deadlock is left, and no empty frame is left.

mod apply;
mod commit;
mod effects;
mod grant_pass;
mod hosts;
mod leases;
mod request;
pub(in crate::core) mod worklist;
