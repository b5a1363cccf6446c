//! A bounded record of ended requests and holds, in files.
//!
//! `record` is one request, `form` the form of records in a file, `store` has all files, `search`
//! finds records, and `tally` counts them with `histogram` and `timeline`. `replay` repeats the
//! recorded requests with another size, `estimate` predicts waits, and `checkpoint` has the
//! requests that are still open.
//!
//! Invariants: a file is only appended to, so a process that is killed leaves at most its last
//! record torn. An unreadable file is set aside and never ends a daemon.

mod checkpoint;
mod estimate;
mod form;
mod histogram;
#[cfg(test)]
mod many_records;
mod record;
mod replay;
mod search;
mod store;
mod tally;
mod timeline;

pub(crate) use checkpoint::{Checkpoint, unrecorded};
pub(crate) use estimate::{Holder, Sample, Summary, Waiter, estimates};
pub(crate) use form::Batch;
pub(crate) use histogram::{Bins, Quantiles};
pub(crate) use record::{Ending, Fields, ItemFields, Reason, Record, RingStep};
pub(crate) use search::{Found, Query, Search};
pub(crate) use store::{Limits, Store};
pub(crate) use tally::{
    CommandGroup, Counted, Counts, KeyUse, Present, Running, SlotsTable, Tally,
};
