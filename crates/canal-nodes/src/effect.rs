//! The effects that a coordinator asks its driver to carry out, and the changes that it reports.

use canal_core::Token;
use canal_protocol::NodeFailure;
use canal_sys::deadline_page::Deadline;

use super::{Asking, Millis, Refusal};

/// One effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Call the node with this index in the plan.
    Node(usize, Call),
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

/// A call of a node. Calls about a lease name its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Close the connection, if there is one, and open another.
    Connect,
    /// Ask for the node's part. The number is the earlier one if that request may still be there.
    Ask(u32, Asking),
    /// Withdraw the request or a collecting grant by closing the connection.
    Cancel,
    /// Make the node's collecting grant firm, with this token.
    ConfirmAt(u32, Token),
    /// Renew the node's lease by its handle.
    Renew(u32),
    /// Release the node's lease by its handle.
    Release(u32),
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
        why: NodeFailure,
        /// Other nodes that do not answer.
        silent: Vec<usize>,
    },
    /// It cannot be granted (125): these nodes cannot be used, or not reached in time, each with
    /// the reason. No command runs.
    Failed(Vec<(usize, NodeFailure)>),
    /// Too few nodes held the lock while the command ran; the command has ended since (122). These
    /// nodes no longer hold it, or did not answer in time.
    Lost(Vec<usize>),
    /// The command has ended, or the caller gave up, and everything was released. These nodes did
    /// not answer: each keeps its lease until its TTL is over.
    GivenBack(Vec<usize>),
}

impl Outcome {
    /// Advice for the user.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused { why, .. } => why.hint.as_deref(),
            Self::Failed(nodes) => nodes.iter().find_map(|(_, why)| why.hint.as_deref()),
            Self::Lost(_) | Self::GivenBack(_) => None,
        }
    }
}

/// A change. Nodes are indices in the plan.
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
        held: Held,
        /// When a running command stops unless this node, or enough others, answer first.
        stops_at: Option<Millis>,
    },
    /// A node that was away answers again.
    Back(usize, Held),
    /// More or fewer nodes have granted the request, or it now waits at other nodes: these, in the
    /// order in which they are asked. Each node also shows this as the state of the whole request.
    Held(Held, Vec<usize>),
    /// Nodes do not grant anything over nodes yet, because they had to recreate their state. The
    /// last of them begins to grant at this time.
    NotYet(Vec<usize>, Millis),
    /// Too few nodes answer: the counts are of nodes that answer. Until enough do, the request
    /// holds nothing and blocks no other request.
    TooFew(Held),
    /// The request released everything and asks for it again, because of this node; `None` if it
    /// gave way.
    AskedAnew(Option<usize>),
    /// A node refuses to join the lock of a running command, because it knows a request over
    /// another list: commands over the two lists do not exclude each other. The text names the two
    /// lists.
    OtherList(usize, String),
    /// A node no longer holds its part of a running command's lock.
    Lost(usize, Held),
}

/// How many nodes hold the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// How many do.
    pub held: usize,
    /// How many must.
    pub need: usize,
}
