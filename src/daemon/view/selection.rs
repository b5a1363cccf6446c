//! What a report of the status shows.

use crate::core::Key;

/// Which keys a report of the status shows, and what of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Only this key and the keys below it.
    pub(crate) key: Option<Key>,
    /// Only holds and waiting requests of this user, and keys that have such.
    pub(crate) uid: Option<u32>,
    /// Only keys for which a request waits; with `uid`, one of that user.
    pub(crate) waiting: bool,
    /// Whether working folders are looked up, and what keeps a hold.
    pub(crate) full: bool,
}
