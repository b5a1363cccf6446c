//! The state that a coordinator needs to take over.

use canal_core::Token;
use serde::{Deserialize, Serialize};

use super::Millis;

/// A coordinator's knowledge of the leases of its request. The driver hands it to the process that
/// stays by the command. If this coordinator dies, that process passes it to the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The token with which its leases are confirmed; `None` before enough nodes granted theirs.
    pub token: Option<Token>,
    /// The number of nodes that must hold the lock.
    pub need: usize,
    /// The nodes that count, ascending: those of the plan, or those that answered at the beginning.
    pub parts: Vec<Part>,
}

/// The known state of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The node.
    pub node: usize,
    /// The number of the lease in the last request to it; 0 before the first.
    pub lease: u32,
    /// When the last confirmation or renewal that the node has answered was sent; `None` if it
    /// holds nothing for certain.
    pub sent: Option<Millis>,
    /// See [`Asking`]; `None` if nothing unconfirmed can be left under that number.
    pub asked: Option<Asking>,
}

/// How a node was asked under a number. The request continues under that number and keeps its place
/// until the node has answered that nothing is left, or a confirmation was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asking {
    /// Whether the request must not wait there.
    pub no_wait: bool,
    /// Whether enough others have granted the request: then the node takes this part back for any
    /// request that would then fit.
    pub spare: bool,
}
