//! The leader that holds a key.

use serde::{Deserialize, Serialize};

use crate::HolderInfo;

/// `Leader`: asks for the leader that holds exactly this key. With `more`, replies again after each
/// change.
///
/// The error is [`NotExclusive`](crate::ErrorName::NotExclusive) if several holders can
/// have the key at once; it also ends a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderQuery {
    /// The key.
    pub key: String,
}

/// The reply to a [`LeaderQuery`]. `T`: as in [`Grant`](crate::Grant).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct Leader<T = String> {
    /// The holder; null while there is none. The state of its process is not looked up.
    pub leader: Option<HolderInfo<T>>,
    /// Whether this may be out of date: the daemon works over an engine and does not receive the
    /// other hosts' changes. Without a leader: whether the daemon knows none because of that.
    #[serde(default)]
    pub stale: bool,
}

impl<T> Leader<T> {
    /// A reply that names a leader, or none.
    #[must_use]
    pub fn new(leader: Option<HolderInfo<T>>, stale: bool) -> Self {
        Self { leader, stale }
    }
}
