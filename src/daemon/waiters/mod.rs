//! Requests that wait, and grants until they are sent.
//!
//! Invariant: a waiter keeps its place until it is granted, withdrawn or gone.

pub(super) mod detached;
pub(super) mod ended;
pub(super) mod grant;
pub(super) mod leases;
pub(super) mod look_ahead;
pub(super) mod note;
pub(super) mod progress;
pub(super) mod regrant;
pub(super) mod stopped;
pub(super) mod unsynced_leases;
pub(super) mod waiting;
