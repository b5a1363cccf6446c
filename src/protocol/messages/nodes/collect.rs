//! Asking one node for its part of a request over nodes.

use serde::{Deserialize, Serialize};

use crate::core::{NodeId, Require, RunId, Tag};
use crate::protocol::{FrameOfNode, Handle, WireItem};

/// `Collect`: asks for a lease that is one part of a request over nodes. Its replies are those of
/// [`Acquire`](crate::protocol::Acquire) for a lease.
///
/// The grant is *collecting* until [`ConfirmAt`](crate::protocol::ConfirmAt): it ends with its
/// connection, and with the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collect {
    /// The request over all its nodes.
    pub run: RunId,
    /// The name of this part, as in [`Acquire`](crate::protocol::Acquire); another one at each node.
    pub tag: Tag,
    /// The secret of the lease at this node.
    pub handle: Handle,
    /// For how many milliseconds the lease lives without being renewed.
    pub ttl_ms: u64,
    /// The items that are asked for, the same at each node.
    pub items: Vec<WireItem>,
    /// The ids of all nodes of the request, ascending, this one among them.
    pub nodes: Vec<NodeId>,
    /// How many of them have to grant it.
    pub require: Require,
    /// As in [`Acquire`](crate::protocol::Acquire).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// As in [`Acquire`](crate::protocol::Acquire).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// As in [`Acquire`](crate::protocol::Acquire).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<u64>,
    /// What to show of the owner.
    pub command: String,
    /// As in [`Acquire`](crate::protocol::Acquire).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether enough other nodes have granted the request already. Such a part is granted at once
    /// or refused, and while it is collecting the node takes it back for others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare: bool,
    /// The handle of a lease of this node under which this one is asked for, by a command that runs
    /// under it. What that lease holds is not in the way of this one. The handle of a lease that is not
    /// confirmed, or has ended, is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<Handle>,
    /// As in [`Acquire`](crate::protocol::Acquire).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_run: Option<RunId>,
    /// The innermost frame within which the request is made, if that is one of a daemon: of this one
    /// or of another. It goes before `under_run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_frame: Option<FrameOfNode>,
}

/// The default, which is left out.
fn is_zero(n: &i32) -> bool {
    *n == 0
}
