//! Releases of holds.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Handle, HolderInfo};

/// `Release`: releases holds. Exactly one of `key`, `all`, `token` and `handle` selects them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The owner's latest hold of this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
    /// Everything that the owner holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// The hold with this token, with all its keys. Its owner may always release it. From another
    /// process, it is a release by force: allowed to the same user, root, and users whom the
    /// configuration permits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The lease with this secret; any caller may release it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<Handle>,
    /// The owner, as in [`Acquire`](super::acquire::Acquire). Not used with `token` and `handle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_fd: Option<u32>,
}

/// The result of a [`Release`]. `T`: as in [`Grant`](super::acquire::Grant).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released<T = String> {
    /// The holds, or parts of them; none if a part of a request over nodes still waited.
    pub released: Vec<ReleasedHold<T>>,
}

/// One released hold, or the released part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleasedHold<T = String> {
    /// Its token.
    pub token: u64,
    /// The released keys.
    pub keys: Vec<T>,
    /// The holder.
    pub holder: HolderInfo<T>,
}
