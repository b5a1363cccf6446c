//! Figures for monitoring: the daemon's counters, and the endpoint for collectors.
//!
//! `counters` belongs to the recorder of the history, which knows each grant and each end. It also
//! has the snapshot, all figures at one time, which `server/observe.rs` takes; `open_metrics`
//! formats it. `exporter` serves the text from threads of its own, with `http`.
//!
//! The recorder counts even if no history is kept, so the two always agree.
//!
//! Invariants: the number of keys with separate figures is bounded. The text contains only names of
//! keys and figures, because every user of the machine can read a loopback port. The daemon's loop
//! never reads from or writes to a collector.

pub(super) mod counters;
pub(super) mod exporter;
mod http;
pub(super) mod open_metrics;
