//! What wakes the thread of the engine.

use super::notification::Notification;
use crate::log::engine::Call;

/// What the thread wakes up for.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// The host asks.
    Call(Call),
    /// The server says that a batch was appended.
    Notified(Notification),
    /// The connection of that session ended.
    Ended(u64),
    /// The host needs the engine no more.
    Quit,
}
