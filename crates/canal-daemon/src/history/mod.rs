//! Records each request that has ended.
//!
//! `recorder` follows the table's decisions and makes the records. `queue` passes them to a thread
//! (`writer`), which also searches. `open` notes the requests that have not ended, so that the next
//! daemon can record them after a crash of the machine. `estimates` predicts waits.
//! `server/requests/history.rs` answers the queries of clients.
//!
//! Invariants: no reply waits for the history. Before the replies of a turn are written, the daemon
//! only notes in memory which requests ended. If the writer cannot keep up, records are dropped and
//! counted.

pub(super) mod cause;
pub(super) mod ending;
pub(super) mod estimates;
pub(super) mod exits;
pub(super) mod open;
pub(super) mod queue;
pub(super) mod raw;
pub(super) mod recorder;
pub(super) mod slots;
pub(super) mod writer;
