//! The calls of each connection, and what they wait for.
//!
//! Invariant: a call that left the queue of its connection gets exactly one answer, from
//! `server/call_step.rs`.

pub(super) mod call;
pub(super) mod call_table;
pub(super) mod in_flight;
pub(super) mod parameters;
