//! The effects that a coordinator asks its driver to carry out, and the changes that it reports.

use canal_core::Token;

use super::{Asking, Millis, Refusal};

/// One effect. `node` is the index of the node in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Close the connection to a node, if there is one, and open another.
    Connect {
        /// The node.
        node: usize,
    },
    /// Ask a node for its part.
    Ask {
        /// The node.
        node: usize,
        /// The number of the lease: the earlier one if that request may still be there.
        lease: u32,
        /// How to ask.
        asking: Asking,
    },
    /// Withdraw the request or a collecting grant by closing the connection.
    Cancel {
        /// The node.
        node: usize,
    },
    /// Make a node's collecting grant firm, with this token.
    ConfirmAt {
        /// The node.
        node: usize,
        /// The number of the lease.
        lease: u32,
        /// The token.
        token: Token,
    },
    /// Renew a node's lease by its handle.
    Renew {
        /// The node.
        node: usize,
        /// The number of the lease.
        lease: u32,
    },
    /// Release a node's lease by its handle.
    Release {
        /// The node.
        node: usize,
        /// The number of the lease.
        lease: u32,
    },
    /// The command may start, unless `deadline.term_at` passes before it would.
    Start {
        /// Its fencing token; `None` if the requirement excludes no other command.
        token: Option<Token>,
        /// The nodes that hold the lock for it.
        nodes: Vec<usize>,
        /// Until when it may run.
        deadline: Deadline,
    },
    /// The deadline of the running command has changed, to a later or an earlier time: publish it.
    Deadline(Deadline),
    /// The lock is lost: kill the command at once. Its leases are not released before
    /// [`Input::Stop`](super::Input::Stop).
    KillNow,
    /// Report this to the user.
    Say(Change),
    /// The request is over. No effect follows.
    End(Outcome),
    /// Call again at this time with [`Input::Tick`](super::Input::Tick), unless another input comes
    /// first. This replaces the earlier time.
    WakeAt(Millis),
}

/// Until when a command may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// The time since which enough nodes are known to hold the lock: when the oldest confirmation
    /// or renewal that counts was sent.
    pub reached_at: Millis,
    /// From this time on the command gets TERM, and none is started.
    pub term_at: Millis,
    /// From this time on the command gets KILL.
    pub kill_at: Millis,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not granted (75). No command runs.
    Refused {
        /// The node that refused it; `None` if the request's own time to wait is over.
        node: Option<usize>,
        /// The kind of the refusal.
        refusal: Refusal,
        /// The reason, as text for the user.
        why: String,
        /// Other nodes that do not answer.
        silent: Vec<usize>,
    },
    /// It cannot be granted (125): these nodes cannot be used, or not reached in time, each with
    /// the reason. No command runs.
    Failed {
        /// The nodes and the reasons.
        nodes: Vec<(usize, String)>,
    },
    /// Too few nodes held the lock while the command ran; the command has ended since (122).
    Lost {
        /// The nodes that no longer hold it, and those that did not answer in time.
        nodes: Vec<usize>,
    },
    /// The command has ended, or the caller gave up, and everything was released.
    GivenBack {
        /// The nodes that did not answer: each keeps its lease until its TTL is over.
        left: Vec<usize>,
    },
}

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
