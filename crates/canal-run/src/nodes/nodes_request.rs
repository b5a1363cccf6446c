//! A request over nodes: what its caller asks for, what the driver of its coordinator tells the
//! process that it runs in, and the messages between the processes of one `canal run`: the
//! coordinator, the parent that stays by the command, and the child that becomes it.

use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use canal_core::FrameId;
use canal_lock::client::Options;
use canal_lock::client::nodes::known_nodes::KnownNodes;
use canal_lock::client::nodes::lease::{EnclosingLeases, LeaseHandle, LeasePart, Secret};
use canal_nodes::{Checkpoint, Millis, Outcome, Require};
use canal_protocol::node_address::NodeAddress;
use canal_protocol::paths::Place;
use canal_protocol::{
    Acquire, CycleStepInfo, ErrorName, Failure, Grant, Node, NodeId, OnLost, Progress, Released,
    Renewed,
};
use canal_sys::clock::boottime_ms;
use canal_sys::deadline_page::Deadline;

/// The surroundings of a request, and how to reach them.
#[derive(Clone, Debug)]
pub struct Around {
    /// The other nodes over which a deadlock may extend, if the request is made within something.
    pub near: Vec<Node>,
    /// The identities of the nodes when they were first met.
    pub known_nodes: KnownNodes,
    /// The place that all commands of this machine use.
    pub here: Place,
    /// How to start a daemon there.
    pub options: Options,
}

/// The purpose of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The child, which becomes a command, and what to do with it if the lock is lost.
    Command(OnLost),
    /// A lease, which outlives the process that asked for it.
    Lease,
}

/// The request to the nodes.
#[derive(Clone, Debug)]
pub struct NodesRequest {
    /// The request as one daemon would get it. Its time to wait is for all nodes together.
    pub asked: Acquire,
    /// The nodes, in the order in which the user named them.
    pub nodes: Vec<Node>,
    /// How many of them must grant it.
    pub require: Require,
    /// What the lock is for.
    pub purpose: Purpose,
    /// How long each keeps its lease without a renewal, in milliseconds.
    pub ttl_ms: u64,
    /// For a renewal that changes the TTL: the new TTL.
    pub new_ttl_ms: Option<u64>,
    /// When it was made, in milliseconds of CLOCK_BOOTTIME. The time to wait begins then, even if
    /// another coordinator asks later.
    pub asked_at: u64,
    /// The source of the names and secrets of its leases.
    pub secret: Secret,
    /// How to reach the nodes, and others.
    pub around: Around,
    /// The enclosing frame of this machine's daemon, according to the environment. If there is also
    /// an enclosing run over nodes, the frame is within it.
    pub under_frame: Option<FrameId>,
    /// The enclosing leases over nodes.
    pub under: EnclosingLeases,
}

impl NodesRequest {
    /// A request about an existing lease, which asks for nothing new. `nodes` are those of
    /// [`LeaseHandle::parts`], under the user's names; each renewal carries `note` and
    /// `new_ttl_ms`.
    pub fn of_lease(
        handle: &LeaseHandle,
        nodes: Vec<Node>,
        note: Option<String>,
        new_ttl_ms: Option<u64>,
        around: Around,
    ) -> Self {
        Self {
            asked: Acquire { note, ..Acquire::default() },
            around,
            under_frame: None,
            under: EnclosingLeases::default(),
            nodes,
            require: Require::All,
            purpose: Purpose::Lease,
            ttl_ms: new_ttl_ms.unwrap_or(handle.ttl_ms),
            new_ttl_ms,
            asked_at: boottime_ms(),
            secret: handle.secret,
        }
    }
}

/// The process in which the driver of a coordinator runs.
pub trait Host {
    /// Saves the state that another coordinator needs to take over. `nodes` are those of the plan.
    fn keep(&mut self, _nodes: Vec<(NodeAddress, NodeId)>, _checkpoint: Checkpoint) {}

    /// Publishes the deadline of the command.
    fn publish(&mut self, _deadline: Deadline) {}

    /// Lets the command start. `answers` are the nodes' last answers about an existing lease, in
    /// the order of the plan. Returns whether the driver continues.
    fn start(&mut self, _start: Start, _answers: &[PartAnswer]) -> bool {
        true
    }

    /// Called once after the start, when no further node is about to hold its part.
    fn settled(&mut self, _parts: &[LeasePart]) {}

    /// Kills the command at once, because the lock is lost.
    fn kill_now(&mut self) {}

    /// Reports something to the user.
    fn say(&mut self, news: News);

    /// The descriptors to poll besides the connections.
    fn polled(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Handles the polled descriptors, and everything due by now.
    fn turn(&mut self, _now: Millis) -> Wish {
        Wish::GoOn
    }

    /// The latest time for the next call of [`Self::turn`].
    fn due(&self) -> Option<Millis> {
        None
    }
}

/// The host's instruction to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// Continue.
    GoOn,
    /// Release everything and end: the command has ended, or the caller no longer wants the lock.
    Stop,
    /// The same while the request waits, because no reader of its output is left.
    Abandon,
    /// End, and leave the leases as they are, because others look after them.
    Leave,
}

impl Wish {
    /// Follows another instruction. A stop keeps the reason if the driver is stopping already.
    pub(super) fn follow(&mut self, next: Self) {
        if (*self, next) != (Self::Abandon, Self::Stop) {
            *self = next;
        }
    }
}

/// A node's last answer about its part of a lease.
#[derive(Clone, Debug)]
pub struct PartAnswer {
    /// The user's word for the node.
    pub name: String,
    /// The answer; `None` if it gave none about its part.
    pub said: Option<PartSaid>,
    /// Its last known trouble, if it gave no such answer.
    pub trouble: Option<PartTrouble>,
}

/// Why a node did not answer about its part of a lease.
#[derive(Clone, Debug)]
pub enum PartTrouble {
    /// It is out of reach, for this reason.
    Away(String),
    /// It refused to do so, for this reason. Its part stays as it is.
    Refused(String),
}

/// A node's answer about its part of a lease.
#[derive(Clone, Debug)]
pub enum PartSaid {
    /// It was renewed.
    Renewed(Box<Renewed>),
    /// It was released.
    Released(Box<Released>),
    /// The node no longer has it.
    Lost(Box<Failure>),
}

/// News of a request for the user. Nodes have the names that the user knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum News {
    /// The request waits at this node.
    Waits {
        /// The name of the node.
        name: String,
        /// The progress of its wait.
        progress: Progress,
    },
    /// The request waits until new nodes grant anything.
    New {
        /// The names of the nodes.
        names: Vec<String>,
        /// When the last of them begins to grant, in milliseconds of CLOCK_BOOTTIME.
        until: u64,
    },
    /// A node is away.
    Away(String),
    /// Anything else.
    Note(String),
}

/// How a request ended, with the names of its nodes.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The outcome.
    pub outcome: Outcome,
    /// The nodes of the plan in its order, with their last answers about an existing lease.
    pub answers: Vec<PartAnswer>,
    /// For a deadlock: the ring, the refused request first.
    pub cycle: Vec<CycleStepInfo>,
}

/// A message from the coordinator to the child before the command starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum BeforeStart {
    /// News for the user.
    News(News),
    /// The lock is held.
    Start(Start),
    /// The lock is not held, and will not be, for this reason; `None` if the caller gave up.
    End(Option<NotHeld>),
}

/// Why the lock is not held, as a daemon would answer. A [`Failure`] does not carry its name across
/// the channel, so the name is separate.
pub type NotHeld = (ErrorName, Failure);

/// A line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line that `-q` hides.
    Note(String),
    /// A line that always appears.
    Message(String),
}

/// The lock is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The fencing token; `None` if the requirement excludes no other command.
    pub token: Option<u64>,
    /// The names of the nodes that held it first.
    pub nodes: Vec<String>,
    /// The grant of the first of them.
    pub grant: Option<Grant>,
    /// The number of nodes that must hold it.
    pub need: usize,
    /// The parts of those nodes, in the same order. For a lease: the known state of each node,
    /// ascending by id.
    pub parts: Vec<LeasePart>,
}

/// A message from the coordinator to the parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToParent {
    /// Look at the deadline page: it has changed in a way that matters at once.
    Look,
    /// Print this note.
    Note(String),
}

/// A message from the process that waits for the lock to the coordinator. The parent sends a
/// [`Wish`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToCoordinator {
    /// This descriptor is my process.
    Command,
    /// See [`Wish::Abandon`].
    Abandon,
}
