//! Changes of the stored size of a lock.

use serde::{Deserialize, Serialize};

/// `Resize`: stores or forgets the size of a key, pauses or resumes it, or takes parts of it out of
/// service or returns them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    /// The key.
    pub key: String,
    /// The number of slots in each bucket; requires `buckets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<u64>,
    /// The number of buckets; requires `per`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u64>,
    /// The number of slots, instead of `per` and `buckets`. 0 pauses the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// Whether to forget the stored view.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forget: bool,
    /// Pauses the key (true) or resumes it (false); its stored view stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<bool>,
    /// Takes these buckets (for the slots kind: slots) out of service; its stored view stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<Vec<u64>>,
    /// Returns these buckets or slots to service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<Vec<u64>>,
}

/// The result of a [`Resize`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// The key.
    pub key: String,
    /// The previously stored view, as `3x2` or `4`.
    pub before: Option<String>,
    /// The view that is now stored.
    pub now: Option<String>,
    /// Whether the key is now paused.
    #[serde(default)]
    pub paused: bool,
    /// The buckets that are now out of service; for the slots kind, the slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<u64>,
    /// The number of slots currently held.
    pub held: u64,
    /// The number of waiters.
    pub waiting: u64,
}
