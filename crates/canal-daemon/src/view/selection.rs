//! Selects the content of a status report.

use canal_core::{FrameId, Key};

/// The keys that a status report shows, and the details of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Only this key and the keys below it.
    pub key: Option<Key>,
    /// Only holds and waiting requests of this user, and keys that have any.
    pub uid: Option<u32>,
    /// Only holds and waiting requests of this session, and keys that have any.
    pub session: Option<FrameId>,
    /// Only keys for which a request waits; with `uid`, a request of that user.
    pub waiting: bool,
    /// Whether to look up working directories, and the processes that keep a hold.
    pub full: bool,
}
