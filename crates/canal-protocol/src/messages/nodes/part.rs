//! The calls for one part of a request over nodes, to the node of that part.

use serde::{Deserialize, Serialize};

use crate::{FrameOfNode, Handle, WireItem};
use canal_core::{NodeId, Require, RunId, Tag};

/// `Collect`: requests a lease that is one part of a request over nodes. Its replies are those of
/// [`Acquire`](crate::Acquire) for a lease.
///
/// The grant is *collecting* until [`ConfirmAt`]: it ends with its connection, and with the daemon.
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
    #[serde(default, skip_serializing_if = "crate::messages::acquire::is_zero")]
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

/// The most names of nodes in a [`Report`], and the most bytes in each name.
pub const REPORTED_NODES_MAX: usize = 64;

/// `Report`: the progress of the whole request, for people who look at this node. It is only for
/// display. The daemon keeps it in memory until the lease has ended, and forgets it when it
/// restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The secret of the lease at this node; its request may still wait.
    pub handle: Handle,
    /// The number of nodes that must grant it.
    pub need: u64,
    /// The number that have granted it.
    pub held: u64,
    /// The nodes that it waits for, by their names for its user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
}

/// The reply to a [`Report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {}
