//! The identity of a daemon as a node.

use serde::{Deserialize, Serialize};

use canal_core::NodeId;

/// `Identify`: asks which node the daemon is. It has no parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identify {}

/// The reply to an [`Identify`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
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
    /// The version of the daemon's program.
    pub version: String,
    /// Whether its state outlives a reboot. Without that, the daemon is not a node.
    pub lasting: bool,
    /// How many more milliseconds it grants nothing over nodes, because it had to recreate its
    /// state and does not know its earlier grants; null if it grants.
    pub grants_from_ms: Option<u64>,
}

impl NodeIdentity {
    /// The identity of a node whose state is lasting and that grants immediately.
    #[must_use]
    pub fn new(node: NodeId, machine: String, place: String, uid: u32) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { node, machine, place, uid, user: None, version, lasting: true, grants_from_ms: None }
    }
}
