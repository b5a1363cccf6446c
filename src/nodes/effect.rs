//! What a coordinator wants done.

use super::{Change, Millis, Refusal};
use crate::core::Token;

/// One thing to do. `node` is the index of the node in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Close the connection to a node, if there is one, and open another.
    Connect {
        /// Which node.
        node: usize,
    },
    /// Ask a node for its part.
    Ask {
        /// Which node.
        node: usize,
        /// The number of the lease: that of before if the request may still be there.
        lease: u32,
        /// The request must not wait there.
        no_wait: bool,
        /// Enough others have granted it: the node takes it back for whoever would then fit.
        spare: bool,
    },
    /// Withdraw the request, or give a collecting grant back, by closing the connection.
    Cancel {
        /// Which node.
        node: usize,
    },
    /// Make a node's collecting grant firm, with this token.
    ConfirmAt {
        /// Which node.
        node: usize,
        /// The number of the lease.
        lease: u32,
        /// The token.
        token: Token,
    },
    /// Renew a node's lease by its handle.
    Renew {
        /// Which node.
        node: usize,
        /// The number of the lease.
        lease: u32,
    },
    /// Release a node's lease by its handle.
    Release {
        /// Which node.
        node: usize,
        /// The number of the lease.
        lease: u32,
    },
    /// The command may start, unless `deadline.term_at` has come by the time it would.
    Start {
        /// Its fencing token; `None` where the requirement excludes nobody.
        token: Option<Token>,
        /// The nodes that hold the lock for it.
        nodes: Vec<usize>,
        /// Until when it may run.
        deadline: Deadline,
    },
    /// The running command has another deadline, later or earlier: publish it.
    Deadline(Deadline),
    /// The lock is lost: the command must be killed at once. Its leases are not released before
    /// [`Input::Stop`](super::Input::Stop).
    KillNow,
    /// Tell people.
    Say(Change),
    /// The request is over. Nothing follows.
    End(Outcome),
    /// Call again at this time with [`Input::Tick`](super::Input::Tick), unless there is something
    /// else to say before. It replaces the time that was said before.
    WakeAt(Millis),
}

/// Until when a command may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// The time since which enough nodes are known to hold the lock: when the least recent
    /// confirmation or renewal that counts was sent.
    pub reached_at: Millis,
    /// From this time on the command is asked to end (TERM), and none is started.
    pub term_at: Millis,
    /// From this time on the command is killed.
    pub kill_at: Millis,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not granted (75). Nothing runs.
    Refused {
        /// The node that refused it; `None` if its own time to wait is over.
        node: Option<usize>,
        /// The kind of the refusal.
        refusal: Refusal,
        /// The reason, for people.
        why: String,
        /// Other nodes, which do not answer.
        silent: Vec<usize>,
    },
    /// It cannot be granted (125): these nodes cannot be used, or not reached in time, each with the
    /// reason. Nothing runs.
    Failed {
        /// Which nodes, and why.
        nodes: Vec<(usize, String)>,
    },
    /// Too few nodes held the lock while the command ran, which has ended since (122).
    Lost {
        /// The nodes that do not hold it any more, and those that did not answer in time.
        nodes: Vec<usize>,
    },
    /// The command has ended, or the caller gave up, and everything was given back.
    GivenBack {
        /// Nodes that did not answer: each keeps its lease until its TTL is over.
        left: Vec<usize>,
    },
}
