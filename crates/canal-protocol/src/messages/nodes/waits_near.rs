//! A node's knowledge of the waits near some runs over nodes.

use serde::{Deserialize, Serialize};

use canal_core::{FrameId, NodeId, RequestId, Require, RunId, Snapshot, Tag};

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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<FrameId>,
    /// The tag of a request at this node, to get its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<Tag>,
    /// All nodes that the caller reads. While the connection is open, the node names them to other
    /// callers that search near the same runs or frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
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

impl FrameFound {
    /// A frame of a process or lease that is not a part of a request over nodes, and not within
    /// one.
    #[must_use]
    pub fn new(frame: FrameId, session: String, pid: u32, uid: u32) -> Self {
        let (command, part_of, under_run, under_frame) = Default::default();
        Self { frame, session, pid, uid, command, lease: false, part_of, under_run, under_frame }
    }
}
