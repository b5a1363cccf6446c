//! Nodes: several daemons that a client asks for one lock. [`link`] reaches them, and
//! [`known_nodes`] checks that each is still the daemon that was first met.

pub mod known_nodes;
pub mod lease;
pub mod link;
pub mod ssh;

use canal_protocol::node_address::NodeAddress;

/// A node of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The user's word for the node: its name, or else its address.
    pub name: String,
    /// The address of the node.
    pub address: NodeAddress,
    /// The program on the node, if it is not the `canal` in its PATH.
    pub canal: Option<String>,
}
