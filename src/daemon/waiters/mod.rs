//! Requests that wait, and grants until they are sent.
//!
//! Invariant: a waiter keeps its place until it is granted, withdrawn or gone.

pub(super) mod leases;
pub(super) mod look_ahead;
pub(super) mod regrant;
pub(super) mod waiting;
