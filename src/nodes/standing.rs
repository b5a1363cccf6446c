//! What a coordinator that takes over must know.

use super::Millis;
use crate::core::Token;

/// What a coordinator knows of a command that it let start. The driver hands it to the process that
/// stays by the command with each [`Start`](super::Effect::Start) and
/// [`Deadline`](super::Effect::Deadline), and that process to the next coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The token of the run.
    pub token: Token,
    /// How many nodes have to hold its lock.
    pub need: usize,
    /// The nodes that count, ascending: those of the plan, or those that answered when it began.
    pub parts: Vec<Part>,
}

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which node.
    pub node: usize,
    /// When the last confirmation or renewal was sent that the node has answered; `None` if it
    /// holds nothing that is known of.
    pub sent: Option<Millis>,
}
