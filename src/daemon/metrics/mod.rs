//! Figures for monitoring: what the daemon counts, and how a collector reads it.
//!
//! `counters` is what is counted; the recorder of the history owns it, because that is where each grant
//! and each end is known. `snapshot` is all figures of one moment, which
//! `server/queries/metrics.rs` takes, and
//! `open_metrics` writes as text. `exporter` offers the text on a loopback port or a Unix socket: it has
//! a thread of its own, which `connections` and `request` belong to.
//!
//! Invariants: the number of keys that are told apart is bounded. Nothing but names of keys and figures
//! is told, because every user of the machine can read a loopback port. The daemon's loop never reads
//! from or writes to a collector.

pub(super) mod connections;
pub(super) mod counters;
pub(super) mod exporter;
pub(super) mod listener;
pub(super) mod open_metrics;
pub(super) mod request;
pub(super) mod snapshot;
