//! Replies about the whole table: status, why, graph. They may be long.
//!
//! Invariant: a report is built only when there is room for it among what clients have not read
//! yet.

pub(super) mod reply_queue;
pub(super) mod serve;
pub(super) mod status;
pub(super) mod waits;
