//! Records each request that has ended.
//!
//! `recorder` follows the table's decisions. `followed_requests` has the requests that it follows,
//! until they become records, also for the next daemon after a crash of the machine. `writer` is a
//! thread that writes the records and searches them. `queue_for_estimate` predicts waits.
//! `server/requests/reports/history.rs` answers the queries of clients.
//!
//! Invariants: no reply waits for the history. Before the replies of a turn are written, the daemon
//! only notes in memory which requests ended. If the writer cannot keep up, records are dropped and
//! counted.

pub(super) mod followed_requests;
pub(super) mod queue_for_estimate;
pub(super) mod recorder;
pub(super) mod writer;
