//! Figures for monitoring: the daemon's counters, and the endpoint for collectors.
//!
//! `counters` belongs to the recorder of the history, which knows each grant and each end.
//! `snapshot` holds all figures at one time, taken by `server/observe.rs`;
//! `open_metrics` formats them. `exporter` serves the text from its own thread, with `connections`
//! and `request`.
//!
//! The recorder counts even if no history is kept, so the two always agree.
//!
//! Invariants: the number of keys with separate figures is bounded. The text contains only names of
//! keys and figures, because every user of the machine can read a loopback port. The daemon's loop
//! never reads from or writes to a collector.

pub(super) mod connections;
pub(super) mod counters;
pub(super) mod exporter;
pub(super) mod listener;
pub(super) mod open_metrics;
pub(super) mod request;
pub(super) mod snapshot;
