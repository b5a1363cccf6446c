//! What wakes the thread of the engine.

use crate::log::engine::Call;

/// What the thread wakes up for.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// The host asks.
    Call(Call),
    /// The server says that batches were appended, up to this position.
    Notified(u64),
    /// The connection of that session ended.
    Ended(u64),
    /// The host needs the engine no more.
    Quit,
}
