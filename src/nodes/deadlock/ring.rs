//! A deadlock over nodes, as it is told.

use super::name::{FrameName, RequestName};
use crate::core::{Key, NodeId, Token};

/// Requests that wait for each other: none of them can go on before one of them gives way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// A shortest ring through the first victim, in the order of the wait. The last step's blocker
    /// waits in the first step.
    pub ring: Vec<Step>,
    /// The requests that can give way, the one to do so first at the front: the youngest whose giving
    /// way helps another one. If the deadlock stands after `n` further looks, the `n`-th after it acts.
    pub victims: Vec<Victim>,
}

/// One step of a ring: a request waits for a key at a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The request.
    pub request: RequestName,
    /// Where it waits.
    pub node: NodeId,
    /// For which key.
    pub key: Key,
    /// What blocks it.
    pub by: Blocked,
}

/// What blocks a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocked {
    /// A hold of this token, of this frame.
    Hold(Token, FrameName),
    /// Another request, whose turn comes first.
    Before(RequestName),
}

/// A request that can give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The request.
    pub request: RequestName,
    /// How.
    pub way: Way,
}

/// How a request gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It gives back what it has collected so far, and asks anew behind the others. Its command does
    /// not run yet, so that nobody notices.
    Surrender,
    /// It is refused, and its command does not run.
    Refusal,
}

impl Deadlock {
    /// The request that is to give way after this many looks found the same deadlock, the first one
    /// included. None if there are not as many that can.
    #[must_use]
    pub fn victim(&self, looks: usize) -> Option<Victim> {
        self.victims.get(looks.checked_sub(1)?).copied()
    }

    /// The requests in its ring.
    pub fn requests(&self) -> impl Iterator<Item = RequestName> {
        self.ring.iter().map(|step| step.request)
    }
}
