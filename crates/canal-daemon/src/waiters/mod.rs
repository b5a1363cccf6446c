//! Requests that wait, and grants until they are sent.
//!
//! Invariant: a waiter keeps its position until it is granted, is withdrawn or ends.

pub(super) mod leases;
pub(super) mod waiting;
