//! The events that wake the engine's thread.

use super::notification::Notification;
use crate::engine::Call;

/// An event that wakes the thread.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// A call by the host.
    Call(Call),
    /// The server reports that a batch was appended.
    Notified(Notification),
    /// The connection of this session ended.
    Ended(u64),
    /// The host no longer needs the engine.
    Quit,
}
