//! The calls that only a request over nodes makes, to several independent daemons.
//!
//! They have a separate interface, so that a daemon without it answers with an error instead of
//! ignoring unknown fields.

use serde::{Deserialize, Serialize};

use crate::{Handle, WireItem};
use canal_core::{Above, FrameId, NodeId, RequestId, Require, RunId, Snapshot, Tag};

/// A node, as its clients know it from then on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownNode {
    /// The id of the node, which survives restarts of the daemon and of the machine.
    pub node: NodeId,
    /// The name of the machine, for people.
    pub machine: String,
    /// The folder of the daemon's socket.
    pub place: String,
    /// The user of the daemon.
    pub uid: u32,
    /// The name of that user; null if it has none.
    pub user: Option<String>,
}

impl KnownNode {
    /// `the daemon of deploy (user 1001) at /tmp/canal-1001 on web1`.
    pub fn shown(&self) -> String {
        let Self { machine, place, uid, user, .. } = self;
        let user = match user {
            Some(user) => format!("{user} (user {uid})"),
            // The name that this machine knows for the number may be another user's.
            None => format!("user {uid}"),
        };
        format!("the daemon of {user} at {place} on {machine}")
    }
}

/// The reply to `Identify`, which asks which node the daemon is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// The node.
    #[serde(flatten)]
    pub known: KnownNode,
    /// The version of the daemon's program.
    pub version: String,
    /// Whether its state outlives a reboot. Without that, the daemon is not a node.
    pub lasting: bool,
    /// How many more milliseconds it grants nothing over nodes, because it had to recreate its
    /// state and does not know its earlier grants; null if it grants.
    pub grants_from_ms: Option<u64>,
}

/// `Restrict`: from now on, this connection may only request leases over nodes under these keys,
/// ask which node the daemon is, and confirm, renew, release and report on leases by their handle.
/// It cannot be undone; another `Restrict` can only remove more. Every other call is `Denied`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restrict {
    /// Each one is a key, for itself and the keys below it. A `/` at its end is ignored. An empty
    /// list permits every key.
    pub keys: Vec<String>,
}

/// The details of an error of the interface of nodes, beyond its message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NodesRefusal {
    /// The details of `NodeListDiffers`.
    Lists {
        /// The key that is held or waited for over another list.
        key: String,
        /// That list.
        theirs: Vec<NodeId>,
        /// The list of the refused request.
        yours: Vec<NodeId>,
    },
    /// The details of `NotYet`.
    Later {
        /// How many more milliseconds this node grants nothing over nodes.
        left_ms: u64,
    },
    /// The details of `TokenTaken`.
    Least {
        /// This token and all larger ones are free at the node.
        least: u64,
    },
}

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
    pub wait_ms: Option<u64>,
    /// As in [`Acquire`](crate::Acquire).
    #[serde(default)]
    pub priority: i32,
    /// As in [`Acquire`](crate::Acquire).
    pub max_waiting: Option<u64>,
    /// The owner's command, for display.
    pub command: String,
    /// As in [`Acquire`](crate::Acquire).
    pub note: Option<String>,
    /// Whether enough other nodes have already granted the request. Such a part is granted
    /// immediately or refused, and while it is collecting the node revokes it for others.
    #[serde(default)]
    pub spare: bool,
    /// The handle of a lease of this node, sent by a command that runs under it. The holds of that
    /// lease do not block this one. The node ignores the handle of a lease that is not confirmed or
    /// has ended.
    pub under: Option<Handle>,
    /// As in [`Acquire`](crate::Acquire).
    pub under_run: Option<RunId>,
    /// The innermost frame of a daemon (this one or another) within which the request is made, if
    /// any. It takes precedence over `under_run`.
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

/// The most runs, and the most frames, that a [`WaitsNear`] may name.
pub const WAITS_NEAR_NAMES_MAX: usize = 1_000;

/// The most nodes that a [`WaitsNear`] may name, and the most bytes of each address.
pub const READ_NODES_MAX: usize = 64;

/// `WaitsNear`: asks for the part of the table that some runs over nodes, and the commands within
/// them, can wait for. Callers search it for deadlocks across nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsNear {
    /// The runs; the node ignores one that it does not know. The answer always contains everything
    /// that this node knows to be within a frame of any node.
    pub runs: Vec<RunId>,
    /// Frames of this node that other nodes named.
    #[serde(default)]
    pub frames: Vec<FrameId>,
    /// The tag of a request at this node, to get its number.
    pub tag: Option<Tag>,
    /// All nodes that the caller reads. While the connection is open, the node names them to other
    /// callers that search near the same runs or frames.
    #[serde(default)]
    pub nodes: Vec<NodeAt>,
}

/// A node, and its address from the view of the caller that names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAt {
    /// The node.
    pub node: NodeId,
    /// Its address, as a user writes it; absent if another user named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// The reply to a [`WaitsNear`]. It contains the keys that are held and wanted near these runs, and
/// their users. It contains only commands that the caller may see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsFound {
    /// The node.
    pub node: NodeId,
    /// The part of the table, in the form of the journal, without commands, notes, tags and owners.
    pub table: Snapshot,
    /// The details of each of its frames.
    pub frames: Vec<FrameFound>,
    /// The number of the request that has the tag, while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    /// The nodes that other callers read while they search near the same runs or frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeAt>,
}

/// A frame near the runs of a [`WaitsNear`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameFound {
    /// Its number at this node.
    pub frame: FrameId,
    /// Its session, as status shows it.
    pub session: String,
    /// Its process; 0 for a lease.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The beginning of its command; absent if the caller may not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Whether it is a lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lease: bool,
    /// For a part of a request over nodes: the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_of: Option<PartFound>,
    /// The run over nodes within which it was requested, according to its client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_run: Option<RunId>,
    /// The frame within which it was requested, according to its client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_frame: Option<FrameOfNode>,
}

impl FrameFound {
    /// The run or frame within which it was requested, according to its client. This authorises
    /// nothing.
    pub fn above(&self) -> Option<Above> {
        let frame = self.under_frame.map(|above| Above::Frame(above.node, above.frame));
        frame.or(self.under_run.map(Above::Run))
    }
}

/// The request over nodes of which a frame is a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFound {
    /// The request over all its nodes.
    pub run: RunId,
    /// The ids of its nodes.
    pub nodes: Vec<NodeId>,
    /// How many of them must grant it.
    pub require: Require,
    /// Whether the part is a spare that is not confirmed: the node revokes it for any request that
    /// would then fit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub loose: bool,
}

/// A frame, and its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameOfNode {
    /// The node.
    pub node: NodeId,
    /// Its number there.
    pub frame: FrameId,
}
