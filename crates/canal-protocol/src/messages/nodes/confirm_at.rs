//! The confirmation of one part of a request over nodes.

use serde::{Deserialize, Serialize};

use crate::Handle;
use canal_core::Tag;

/// `ConfirmAt`: enough nodes have granted the request. Ends the collecting of this part: the lease
/// is firm, lives for its whole TTL from now on, and has the token `token`; the next grant of this
/// node gets a larger one. The lease is durable before the answer.
///
/// The error is `Gone` if the part was not granted or has ended. A repeated call with the same
/// token has the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmAt {
    /// The name of the part.
    pub tag: Tag,
    /// The secret of its lease.
    pub handle: Handle,
    /// The token: 1 more than the largest of the nodes' tokens, at most 2^52.
    pub token: u64,
    /// The new note of the lease; empty removes it, absent keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The reply to a [`ConfirmAt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmedAt {
    /// The token of the lease.
    pub token: u64,
}
