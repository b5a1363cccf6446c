//! Which node a daemon is.

use serde::{Deserialize, Serialize};

use crate::core::NodeId;

/// `Identify`: asks which node the daemon is. It has no parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identify {}

/// The reply to an [`Identify`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeIdentity {
    /// The id of the node. It stays the same over restarts of the daemon and of the machine.
    pub node: NodeId,
    /// The name of the machine, for people.
    pub machine: String,
    /// The folder of the daemon's socket.
    pub place: String,
    /// The user of the daemon.
    pub uid: u32,
    /// The name of that user; null if it has none.
    pub user: Option<String>,
    /// The version of the daemon's program.
    pub version: String,
    /// Whether its state lies where it outlives a reboot. A daemon where it does not is no node.
    pub lasting: bool,
    /// For how many milliseconds more it grants nothing over nodes, because it had to make its state
    /// anew and does not know what it granted before; null if it grants.
    pub grants_from_ms: Option<u64>,
}

impl NodeIdentity {
    /// The identity of a node whose state is lasting and that grants at once.
    #[must_use]
    pub fn new(node: NodeId, machine: String, place: String, uid: u32) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { node, machine, place, uid, user: None, version, lasting: true, grants_from_ms: None }
    }
}
