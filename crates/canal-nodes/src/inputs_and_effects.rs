//! The inputs of a coordinator, the effects that it asks its driver to carry out, and the changes
//! that it reports.

use super::{Asking, Millis};
use canal_core::Token;
use canal_protocol::NodeFailure;
use canal_sys::deadline_page::Deadline;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// An event at the node with this index in the plan.
    Node(usize, Event),
    /// The request gives way: it releases everything and asks again, behind the requests that wait
    /// at the first node. This has no effect once the command may have begun.
    Surrender,
    /// The request gives way for good: it is refused, to end a deadlock, which this text describes
    /// for the user. This has no effect if it no longer waits.
    Deadlock(String),
    /// The command has ended, or the caller no longer wants the lock.
    Stop,
    /// The time of an `Effect::WakeAt` has come.
    Tick,
}

/// An event at a node. Failures are texts for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection is open, and the daemon there is the one to which the name is pinned. If it had
    /// to recreate its state, it does not grant anything over nodes for this many milliseconds.
    Reached(Option<Millis>),
    /// No connection could be opened, or it broke.
    Away(NodeFailure),
    /// The request waits at the node. This event may come repeatedly.
    Queued,
    /// The node granted its part with this token; the grant is collecting.
    Granted(Token),
    /// The node refused the request.
    Refused(Refusal, NodeFailure),
    /// The node answered the `ConfirmAt` that was sent at this time: its part is firm.
    Confirmed(Millis),
    /// A `ConfirmAt` failed: the grant is gone.
    ConfirmFailed,
    /// Another lock of the node has the token of a `ConfirmAt`. The grant is unchanged. This token
    /// and all larger ones are free there.
    TokenTaken(Token),
    /// The node will never accept such a token: it is too far ahead of the node's clock. The grant
    /// is unchanged.
    TokenRefused(NodeFailure),
    /// The node answered a `Renew`: its part is firm.
    Renewed {
        /// When the call was sent.
        sent: Millis,
        /// How long the node keeps the part from now on, according to its answer; `None`: as long
        /// as the coordinator asked.
        ttl_ms: Option<Millis>,
    },
    /// The node holds nothing for this request. This answers a `Release`, even if there was nothing
    /// to release, and a `Renew` of a lease that has ended or was forced.
    Gone,
}

/// Why a node refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key is busy or paused, or too many requests wait already (75).
    Full,
    /// The time to wait is over (75).
    Timeout,
    /// The request is the victim of a deadlock (75).
    Deadlock,
    /// The node recreated its state, and does not grant anything over nodes for this many
    /// milliseconds.
    NotYet(Millis),
    /// This node will never grant it, but others may: it cannot be a node (no lasting state, an
    /// engine), or permits its user less.
    Unfit,
    /// The node knows a request for the same key over a list of nodes that may have none in common
    /// with this list (125).
    OtherList,
    /// No node can grant it: the request itself is at fault (125).
    Invalid,
}

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
    /// [`Input::Stop`].
    KillNow,
    /// Report this to the user.
    Say(Change),
    /// The request is over. No effect follows.
    End(Outcome),
    /// Call again at this time with [`Input::Tick`], unless another input comes
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
