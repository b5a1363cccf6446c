//! One host's part in a table that many hosts share.
//!
//! A [`Member`] connects an engine (by [`Call`](canal_log::engine::Call)s and
//! [`Answer`](canal_log::engine::Answer)s) and the daemon that owns the table. The daemon proposes
//! changes; they return as entries, in the order of the log, among those of all other hosts. A
//! member uses no socket, clock or process. `docs/many-hosts.md` states its rules.
//!
//! Invariant: a member delivers the entries of the log, in order, each once, and none of an
//! incarnation that ended before it.

mod batch_chain;
mod event;
mod failure_detector;
mod incarnation;
mod member;
mod proposal_queue;
mod snapshot_keeper;
#[cfg(test)]
pub(crate) mod tests;
mod ttl;

pub(crate) use batch_chain::{Chain, Known, Mark};
pub(crate) use event::{Event, LostWhy, Now, OngoingOutage, Standing, Ticket};
pub(crate) use incarnation::Memory;
pub(crate) use member::Member;
pub(crate) use ttl::{Settings, Timing};
