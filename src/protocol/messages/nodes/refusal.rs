//! What the errors of a request over nodes say beyond their message.

use serde::{Deserialize, Serialize};

use crate::core::NodeId;

/// What an error of the interface of nodes says beyond its message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NodesRefusal {
    /// Of `NodeListDiffers`.
    Lists {
        /// The key that is held or waited for over another list.
        key: String,
        /// That list.
        theirs: Vec<NodeId>,
        /// The list of the refused request.
        yours: Vec<NodeId>,
    },
    /// Of `NotYet`.
    Later {
        /// For how many milliseconds more this node grants nothing over nodes.
        left_ms: u64,
    },
    /// Of `TokenTaken`.
    Least {
        /// This token and all larger ones are free at the node.
        least: u64,
    },
}
