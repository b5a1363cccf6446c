//! A deadlock over nodes, as canal reports it, and the names in it.

use canal_core::{By, FrameId, Key, Mode, NodeId, RequestId, RunId};

/// The name of something over all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name<T> {
    /// That of a run over nodes.
    Run(RunId),
    /// Any other, at one node.
    Plain(NodeId, T),
}

/// A frame, over all nodes.
pub type FrameName = Name<FrameId>;

/// A request that waits, over all nodes.
pub type RequestName = Name<RequestId>;

/// Requests that wait for each other: none can continue until one of them gives way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// A shortest ring through the first victim, in the order of the waits. The last step's blocker
    /// waits in the first step.
    pub ring: Vec<Step>,
    /// The requests that can give way, in their order. The first is the youngest one that helps
    /// another by giving way. If the deadlock persists after `n` further looks, the `n`-th after it
    /// acts.
    pub victims: Vec<Victim>,
}

/// One step of a ring: a request waits for a key at a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The request.
    pub request: RequestName,
    /// The node at which it waits.
    pub node: NodeId,
    /// The name of the request there.
    pub id: RequestId,
    /// The key for which it waits.
    pub key: Key,
    /// The mode in which it wants the key.
    pub mode: Mode,
    /// The hold or the other request that blocks it there.
    pub by: By,
}

/// A request that can give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The request.
    pub request: RequestName,
    /// How it gives way.
    pub way: Way,
}

/// How a request gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It releases everything that it has collected so far, and asks again behind the others. Its
    /// command does not run yet, so the user does not notice.
    Surrender,
    /// It is refused, and its command does not run.
    Refusal,
}

impl Deadlock {
    /// The request that must give way after this many looks found the same deadlock, including the
    /// first. `None` if fewer requests can.
    #[must_use]
    pub fn victim(&self, looks: usize) -> Option<Victim> {
        self.victims.get(looks.checked_sub(1)?).copied()
    }

    /// The requests in its ring.
    pub fn requests(&self) -> impl Iterator<Item = RequestName> {
        self.ring.iter().map(|step| step.request)
    }
}
