//! Who leads by holding a key.

use serde::{Deserialize, Serialize};

use crate::protocol::HolderInfo;

/// `Leader`: who leads by holding exactly this key. With `more`, again after each change.
///
/// The error is [`NotExclusive`](crate::protocol::ErrorName::NotExclusive) if several can hold the key
/// at once; a watch ends with it, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderQuery {
    /// The key.
    pub key: String,
}

/// The reply to a [`LeaderQuery`]. `T`: as in [`Grant`](crate::protocol::Grant).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
#[non_exhaustive]
pub struct Leader<T = String> {
    /// The holder; null while there is none. The state of its process is not looked up.
    pub leader: Option<HolderInfo<T>>,
    /// Whether this may be out of date: the daemon works over an engine and does not hear of it what
    /// other hosts do. Without a leader: whether the daemon knows none because of that.
    #[serde(default)]
    pub stale: bool,
}

impl<T> Leader<T> {
    /// A leader, or that there is none.
    #[must_use]
    pub fn new(leader: Option<HolderInfo<T>>, stale: bool) -> Self {
        Self { leader, stale }
    }
}
