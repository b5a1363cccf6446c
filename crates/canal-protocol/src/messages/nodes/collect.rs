//! Requests to one node for its part of a request over nodes.

use serde::{Deserialize, Serialize};

use crate::{FrameOfNode, Handle, WireItem};
use canal_core::{NodeId, Require, RunId, Tag};

/// `Collect`: requests a lease that is one part of a request over nodes. Its replies are those of
/// [`Acquire`](crate::Acquire) for a lease.
///
/// The grant is *collecting* until [`ConfirmAt`](crate::ConfirmAt): it ends with its
/// connection, and with the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collect {
    /// The request over all its nodes.
    pub run: RunId,
    /// The name of this part, as in [`Acquire`](crate::Acquire); different at each node.
    pub tag: Tag,
    /// The secret of the lease at this node.
    pub handle: Handle,
    /// How many milliseconds the lease lives without a renewal.
    pub ttl_ms: u64,
    /// The requested items, the same at each node.
    pub items: Vec<WireItem>,
    /// The ids of all nodes of the request, including this one, ascending.
    pub nodes: Vec<NodeId>,
    /// How many of them must grant it.
    pub require: Require,
    /// As in [`Acquire`](crate::Acquire).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// As in [`Acquire`](crate::Acquire).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// As in [`Acquire`](crate::Acquire).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<u64>,
    /// The owner's command, for display.
    pub command: String,
    /// As in [`Acquire`](crate::Acquire).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether enough other nodes have already granted the request. Such a part is granted
    /// immediately or refused, and while it is collecting the node revokes it for others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare: bool,
    /// The handle of a lease of this node, sent by a command that runs under it. The holds of that
    /// lease do not block this one. The node ignores the handle of a lease that is not confirmed or
    /// has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<Handle>,
    /// As in [`Acquire`](crate::Acquire).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_run: Option<RunId>,
    /// The innermost frame of a daemon (this one or another) within which the request is made, if
    /// any. It takes precedence over `under_run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_frame: Option<FrameOfNode>,
}

/// The default, which is omitted.
fn is_zero(n: &i32) -> bool {
    *n == 0
}
