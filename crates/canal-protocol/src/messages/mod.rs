//! The messages: one file per subject, each message a plain type.
//!
//! Invariant: a new field is optional, and a reader ignores fields that it does not know.

pub(super) mod acquire;
pub(super) mod daemon;
pub(super) mod deadline_page;
pub(super) mod envelope;
pub(super) mod error;
pub(super) mod handle;
pub(super) mod history;
pub(super) mod kill;
pub(super) mod leader;
pub(super) mod lease;
pub(super) mod nodes;
pub(super) mod prioritize;
pub(super) mod release;
pub(super) mod resize;
pub(super) mod status;
pub(super) mod wait_graph;
