//! The details of the errors of a request over nodes, beyond their message.

use serde::{Deserialize, Serialize};

use canal_core::NodeId;

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
