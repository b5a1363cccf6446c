//! The lock table: a deterministic state machine over the entries of a log.
//!
//! The table reads no clock, file, socket or random number, and never depends on the iteration
//! order of a hash map. So the same entries give the same table on every host and in every replay.
//! The daemon makes all decisions that depend on time or on processes, and passes them to the table
//! as an [`Entry`].

mod admission;
mod deadlock;
mod find_leader;
mod index;
mod model;
mod queries;
mod state;
mod transition;
mod why_waiting;

pub use admission::node_limits::{are_rivals, differs_in_nodes};
pub use deadlock::{PartialTable, shortest_cycle};
pub use find_leader::Leadership;
pub use model::*;
pub use state::Table;
pub(crate) use state::table::Result;
pub use why_waiting::{OwnSlots, Reason, Why};

#[cfg(test)]
mod tests;
