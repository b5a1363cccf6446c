//! A bounded record of ended requests and holds, in files.
//!
//! `record` is one request, `file_format` has the form of a file of records, `store` keeps the
//! files within the limits of `disk_space`, `search` finds records, and `statistics` counts them
//! with `histogram` and `timeline`.
//! `simulate_size` simulates the recorded requests with another size, `estimate` predicts waits,
//! and `checkpoint` keeps the requests that are still open.
//!
//! Plain files, because the embedded databases that were tried fail on damaged files (redb panicked
//! on 112 of 300 with flipped bits, and would end the daemon at each start) or add 18 s to the
//! build (SQLite and redb). A search of 10 million records takes 0.25 s without an index.
//!
//! Invariants: a file is only appended to, so a process that is killed leaves at most its last
//! record torn. An unreadable file is set aside and never ends a daemon.
#![expect(missing_docs, reason = "fields whose name says all, for packages of canal alone")]

mod checkpoint;
mod disk_space;
mod estimate;
mod file_format;
mod histogram;
mod record;
mod search;
mod simulate_size;
mod statistics;
mod store;
mod timeline;

pub use checkpoint::{Checkpoint, unrecorded};
pub use disk_space::Limits;
pub use estimate::{Holder, Sample, Summary, Waiter, estimates};
pub use file_format::Batch;
pub use record::{Ending, Item, Record};
pub use search::{Query, Search};
pub use statistics::{Present, Running, Tally};
pub use store::Store;

/// Keeps the tests apart from the user's environment and processes.
#[cfg(test)]
#[path = "../../../tests/fixtures/isolation.rs"]
mod isolation;
#[cfg(test)]
mod tests {
    mod many_records;
}
