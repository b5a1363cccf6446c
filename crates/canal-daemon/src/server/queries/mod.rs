//! Serves queries about the state: one file for each query. The replies about the whole table
//! (status, why, graph) may be long.
//!
//! Invariant: a report is built only if the replies that clients have not read yet leave room for
//! it.

mod deadlock;
mod history;
mod history_stats;
mod leader;
mod metrics;
mod serve;
mod status;
mod waits;
mod would_acquire;
