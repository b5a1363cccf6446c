//! What a node shows of the whole request of which it holds a part.

use serde::{Deserialize, Serialize};

use crate::core::{NodeId, Require, RunId};
use crate::protocol::Handle;

/// The most names of nodes that a [`Report`] may have, and the most bytes of each of them.
pub const REPORTED_NODES_MAX: usize = 64;

/// `Report`: how far the whole request is, for people who look at this node. It is shown and never
/// decided upon. The daemon keeps it in memory until the lease has ended, and forgets it when it
/// restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The secret of the lease at this node; its request may still wait.
    pub handle: Handle,
    /// How many nodes have to grant it.
    pub need: u64,
    /// How many have.
    pub held: u64,
    /// The nodes that it waits for, by the names that its user knows them by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
}

/// The reply to a [`Report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {}

/// A request over nodes as one of its nodes shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OverNodesInfo {
    /// The request over all its nodes.
    pub run: RunId,
    /// The ids of its nodes.
    pub nodes: Vec<NodeId>,
    /// How many of them have to grant it, as it was asked for.
    pub require: Require,
    /// The same as a number.
    pub need: u64,
    /// How many have granted it by now, as its client last reported; null if it did not.
    pub held: Option<u64>,
    /// The nodes that it waits for, as its client last reported.
    pub waits_for: Vec<String>,
    /// Whether this part is not confirmed yet: it waits, or it ends with its connection.
    pub collecting: bool,
    /// Whether enough other nodes had granted the request when this part was asked for.
    pub spare: bool,
}
