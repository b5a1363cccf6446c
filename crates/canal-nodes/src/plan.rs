//! The plan of a request: its nodes, and how many of them must grant it; and the state that a
//! coordinator needs to take over.

use canal_core::{NodeId, Require as Asked, Token};
use serde::{Deserialize, Serialize};

use super::Millis;

/// A request over nodes, with everything that its coordinator needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All nodes, ascending by id, each once, at least one. Each coordinator asks in this order.
    pub nodes: Vec<NodeId>,
    /// How many nodes must grant it.
    pub require: Require,
    /// How long a node keeps its lease without a renewal, in milliseconds, at least
    /// [`LEASE_OVER_NODES_MS_MIN`](canal_core::LEASE_OVER_NODES_MS_MIN).
    pub ttl_ms: u64,
    /// How long the request waits, in milliseconds, over all nodes together: 0 means not at all
    /// (`-n`), and `None` forever.
    pub wait_ms: Option<u64>,
    /// When that time begins. Coordinators that follow one another share it.
    pub asked_at: Millis,
}

/// How many nodes must grant a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Require {
    /// Each node.
    #[default]
    All,
    /// One node: the first that is free. It excludes no other request over nodes.
    Any,
    /// More than half of the named nodes.
    Majority,
    /// Each of those that answer within 5 s. Not exclusive: where the network is cut, each side may
    /// run one.
    AllAlive,
    /// More than half of those that answer within 5 s. Not exclusive either.
    MajorityAlive,
}

impl Require {
    /// The form in which a node gets it.
    pub fn as_asked(self) -> Asked {
        match self {
            Self::All | Self::AllAlive => Asked::All,
            Self::Majority | Self::MajorityAlive => Asked::Majority,
            Self::Any => Asked::Any,
        }
    }

    /// How many of `nodes` must grant it.
    pub fn least(self, nodes: usize) -> usize {
        self.as_asked().least(nodes)
    }

    /// Whether only the nodes that answer within 5 s count.
    pub fn counts_the_alive(self) -> bool {
        matches!(self, Self::AllAlive | Self::MajorityAlive)
    }

    /// Whether a request asks, after the start, the nodes that it did not need for it.
    pub fn has_spares(self) -> bool {
        matches!(self, Self::Majority | Self::MajorityAlive)
    }

    /// Whether two commands that exclude each other can never run at once, even if the network is
    /// cut. Only then does the command get a token.
    pub fn is_exclusive(self) -> bool {
        !self.counts_the_alive()
    }
}

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

/// How a coordinator continues with the parts that another one left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The request may still wait, and continues where it waits. The coordinator releases each part
    /// that the other one may have confirmed.
    Wait,
    /// The command was started.
    Run,
    /// Renew each part of a lease. [`Effect::Start`](crate::Effect::Start) means that enough nodes
    /// have renewed theirs; the coordinator then continues to renew.
    /// [`Outcome::Lost`](crate::Outcome::Lost) means that too few nodes have a part left; the
    /// coordinator releases the rest. [`Outcome::Failed`](crate::Outcome::Failed) means that too
    /// few nodes answer; the parts stay as they are. It never asks a node for a new part.
    Renew,
    /// Release a lease at each node in reach, and end.
    GiveBack,
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
