//! The changes that canal shows while a request over nodes waits and runs.

use super::Millis;

/// A change. `node` is the index of the node in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node does not answer.
    Away {
        /// The node.
        node: usize,
        /// The time since which it is silent.
        since: Millis,
        /// The reason.
        why: String,
        /// How many nodes have granted the request, without this one while it waits.
        held: usize,
        /// The number of grants that the request needs.
        need: usize,
        /// When a running command stops unless this node, or enough others, answer first.
        stops_at: Option<Millis>,
    },
    /// A node that was away answers again.
    Back {
        /// The node.
        node: usize,
        /// How many nodes have granted the request.
        held: usize,
        /// The number of grants that the request needs.
        need: usize,
    },
    /// More or fewer nodes have granted the request, or it now waits at other nodes. Each node also
    /// shows this as the state of the whole request.
    Held {
        /// How many have granted it.
        held: usize,
        /// The number of grants that the request needs.
        need: usize,
        /// The nodes that it waits for, in the order in which they are asked.
        waits_for: Vec<usize>,
    },
    /// Nodes do not grant anything over nodes yet, because they had to recreate their state.
    NotYet {
        /// The nodes.
        nodes: Vec<usize>,
        /// When the last of them begins to grant.
        until: Millis,
    },
    /// Too few nodes answer. Until enough do, the request holds nothing and blocks no other
    /// request.
    TooFew {
        /// How many answer.
        answering: usize,
        /// The number that must answer.
        need: usize,
    },
    /// The request released everything and asks for it again.
    AskedAnew {
        /// The node that caused this; `None` if the request gave way.
        node: Option<usize>,
    },
    /// A node refuses to join the lock of a running command, because it knows a request over
    /// another list: commands over the two lists do not exclude each other.
    OtherList {
        /// The node.
        node: usize,
        /// The two lists.
        why: String,
    },
    /// A node no longer holds its part of a running command's lock.
    Lost {
        /// The node.
        node: usize,
        /// How many still do.
        held: usize,
        /// The number that must hold it.
        need: usize,
    },
}
