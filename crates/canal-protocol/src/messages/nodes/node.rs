//! The calls to a node as a whole: its identity, the permitted calls of a connection, and the
//! details of its errors.

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
