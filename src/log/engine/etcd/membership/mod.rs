//! Incarnations of hosts in etcd, the leases that they live by, and eras.
//!
//! Invariant: an incarnation ends only by a batch that says so, never by its lease alone.

pub(super) mod era;
pub(super) mod register;
pub(super) mod renew;
