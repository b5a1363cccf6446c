//! Storing the size of a lock.

use serde::{Deserialize, Serialize};

/// `Resize`: stores a view or forgets it, or pauses a key or resumes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    /// Of which key.
    pub key: String,
    /// With `buckets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<u64>,
    /// With `per`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u64>,
    /// Or this. 0 pauses the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// Or forget the stored view.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forget: bool,
    /// Or pause the key (true), or resume it (false); its view stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<bool>,
}

/// What a [`Resize`] did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// The key.
    pub key: String,
    /// The view stored before, as `3x2` or `4`.
    pub before: Option<String>,
    /// The view stored now.
    pub now: Option<String>,
    /// Whether the key is paused now.
    #[serde(default)]
    pub paused: bool,
    /// Slots held at the moment.
    pub held: u64,
    /// How many wait.
    pub waiting: u64,
}
