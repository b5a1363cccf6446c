//! What ended: a bounded record of requests and holds, in files.
//!
//! `record` is what is known of one request, `form` is the form in which records stand in a file, `store`
//! has all files, `search` looks something up in them, and `tally` counts, with `histogram` and
//! `timeline`. `replay` has the recorded requests ask for a lock of another size, and `estimate` says how
//! long a request will usually wait. `checkpoint` has what is not over yet.
//!
//! Invariants: a file is only appended to, so that a process that is killed leaves at most its last
//! record torn. What cannot be read is set aside and never ends a daemon.

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
