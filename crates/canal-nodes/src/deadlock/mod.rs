//! Finds deadlocks between requests that wait at several nodes.
//!
//! A node finds only deadlocks within its own table. For the others, a client that waits under a
//! run over nodes reads twice, from every node in reach, the part of the table that its waits reach
//! ([`WaitsFound`](canal_protocol::WaitsFound)). The common part (`join`) existed at one moment. On
//! it the client ends every frame without waits and grants every request that its node's own rules
//! allow. The rest is a deadlock ([`find()`]). [`Detector`] decides when to read, and which request
//! gives way.
//!
//! Invariant: anything that can still continue by itself is no deadlock. A node out of reach, a
//! request between two nodes, and everything that changed between the two readings count as able to
//! continue.
//!
//! The order of service counts here, although it does not within one table. A node lets a request
//! overtake a waiter that waits for the request's own session only if it knows of that wait, and it
//! knows only its own table.

mod detector;
mod find;
mod union;

pub use detector::{Detector, Named, Next};
pub use find::{Deadlock, Step, Victim, find, find_in, join};
pub use union::{FrameName, RequestName, Way};

#[cfg(test)]
mod tests;
