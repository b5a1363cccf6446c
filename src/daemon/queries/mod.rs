//! Replies about the whole table: status, why, graph. They may be long. And what a request would be
//! granted, who leads by holding a key, and the leases that ended lately.
//!
//! Invariant: a report is built only when there is room for it among what clients have not read
//! yet.

pub(super) mod ended_leases;
pub(super) mod leader;
pub(super) mod serve;
pub(super) mod status;
pub(super) mod waits;
pub(super) mod would_acquire;
