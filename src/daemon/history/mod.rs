//! What ended: makes a record of each request that has ended, and has it written.
//!
//! `recorder` makes records of what the table decided, at the one place where its outcomes are taken
//! in (`calls/dispatch/propose.rs` and `cluster/follow.rs`). `queue` hands them to a thread of their
//! own (`writer`), which also searches. `open` is what has not ended, which is noted from time to time,
//! so that the next daemon can record it if the machine goes down. `serve` and `stats` are what clients ask;
//! `estimates` is what they are told of how long they will wait.
//!
//! Invariants: no answer waits for the history, and nothing is done for it before the answers of a
//! turn are written, but to note in memory what ended. If the writer cannot keep up, records are
//! dropped and counted.

pub(super) mod cause;
pub(super) mod estimates;
pub(super) mod exits;
pub(super) mod open;
pub(super) mod queue;
pub(super) mod raw;
pub(super) mod recorder;
pub(super) mod serve;
pub(super) mod slots;
pub(super) mod stats;
pub(super) mod writer;
