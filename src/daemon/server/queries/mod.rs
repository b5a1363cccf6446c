//! Serving what clients ask of the state: one file for each question. The replies about the whole table
//! (status, why, graph) may be long.
//!
//! Invariant: a report is built only when there is room for it among what clients have not read
//! yet.

mod deadlock;
mod ended_leases;
mod history;
mod history_stats;
mod leader;
mod metrics;
mod serve;
mod status;
mod waits;
mod would_acquire;
