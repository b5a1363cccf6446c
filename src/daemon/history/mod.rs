//! What ended: makes a record of each request that has ended, and has it written.
//!
//! `recorder` makes records of what the table decided, at the one place where its outcomes are taken
//! in (`server/dispatch/propose.rs` and `server/engine/follow.rs`). `queue` hands them to a thread of their
//! own (`writer`), which also searches. `open` is what has not ended, which is noted from time to time,
//! so that the next daemon can record it if the machine goes down. `estimates`
//! is what clients are told of how long they will wait. What they ask is answered in `server/queries`.
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
pub(super) mod slots;
pub(super) mod writer;
