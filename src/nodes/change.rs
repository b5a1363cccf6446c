//! What people are told while a request over nodes waits and runs: one for each change.

use super::Millis;

/// A change. `node` is the index of the node in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node does not answer.
    Away {
        /// Which node.
        node: usize,
        /// Since when.
        since: Millis,
        /// The reason.
        why: String,
        /// How many nodes have granted the request, without this one while it waits.
        held: usize,
        /// How many have to.
        need: usize,
        /// When a running command stops unless the node, or enough others, answer before.
        stops_at: Option<Millis>,
    },
    /// A node that was away answers again.
    Back {
        /// Which node.
        node: usize,
        /// How many nodes have granted the request.
        held: usize,
        /// How many have to.
        need: usize,
    },
    /// More or fewer nodes have granted the request, or it waits at others. This is also what each
    /// node shows of the whole request.
    Held {
        /// How many have granted it.
        held: usize,
        /// How many have to.
        need: usize,
        /// The nodes that it waits for, in the order in which they are asked.
        waits_for: Vec<usize>,
    },
    /// Nodes grant nothing over nodes yet, because they had to make their state anew.
    NotYet {
        /// Which nodes.
        nodes: Vec<usize>,
        /// When the last of them grants.
        until: Millis,
    },
    /// Too few nodes answer. The request holds nothing and keeps nobody waiting until enough do.
    TooFew {
        /// How many answer.
        answering: usize,
        /// How many have to.
        need: usize,
    },
    /// Everything was given back, and is asked for anew.
    AskedAnew {
        /// The node because of which; `None` for a surrender.
        node: Option<usize>,
    },
    /// A node does not take part in the lock of a running command, because it knows a request over another
    /// list: commands over the two lists do not exclude each other.
    OtherList {
        /// Which node.
        node: usize,
        /// Which lists.
        why: String,
    },
    /// A node does not hold its part of a running command's lock any more.
    Lost {
        /// Which node.
        node: usize,
        /// How many still do.
        held: usize,
        /// How many have to.
        need: usize,
    },
}
