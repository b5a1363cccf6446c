//! What a coordinator that takes over must know.

use super::Millis;
use crate::core::Token;

/// What a coordinator knows of the leases of its request. The driver hands it to the process that
/// stays by the command, and that process to the next coordinator, if this one dies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The token that its leases are confirmed with; `None` before enough nodes granted theirs.
    pub token: Option<Token>,
    /// How many nodes have to hold the lock.
    pub need: usize,
    /// The nodes that count, ascending: those of the plan, or those that answered when it began.
    pub parts: Vec<Part>,
}

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which node.
    pub node: usize,
    /// The number of the lease that it was asked for last; 0 if it was not asked yet.
    pub lease: u32,
    /// When the last confirmation or renewal was sent that the node has answered; `None` if it
    /// holds nothing for certain.
    pub sent: Option<Millis>,
    /// See [`Asking`]; `None` if nothing unconfirmed can be left under that number.
    pub asked: Option<Asking>,
}

/// How a node was asked under a number. Until the node has answered that nothing is left, or a
/// confirmation was sent, the request goes on under that number and keeps its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// The request must not wait there.
    pub no_wait: bool,
    /// Enough others have granted it: the node takes it back for whoever would then fit.
    pub spare: bool,
}
