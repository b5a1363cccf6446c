//! The incarnations of hosts in etcd, the leases on which they depend, and eras.
//!
//! Invariant: an incarnation ends only by a batch that ends it, never by its lease alone.

pub(super) mod era;
pub(super) mod register;
pub(super) mod renew;
