//! The messages between the processes of one `canal run` over nodes: the coordinator, the parent
//! that stays by the command, and the child that becomes it.

use serde::{Deserialize, Serialize};

use canal_lock::client::nodes::lease::HeldPart;
use canal_protocol::{ErrorName, Failure, Grant, Progress};

/// A message from the coordinator to the child before the command starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum BeforeStart {
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
    /// Print this line.
    Line(Line),
    /// The lock is held.
    Start(Start),
    /// The lock is not held, and will not be, for this reason; `None` if the caller gave up.
    End(Option<NotHeld>),
}

/// Why the lock is not held, as a daemon would answer. A [`Failure`] does not carry its name across
/// the channel, so the name is separate.
pub type NotHeld = (ErrorName, Failure);

/// A line for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Whether `-q` hides it.
    pub is_note: bool,
    /// The text.
    pub text: String,
    /// Advice for the user.
    pub hint: Option<String>,
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
    pub parts: Vec<HeldPart>,
}

/// A message from the coordinator to the parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToParent {
    /// Look at the deadline page: it has changed in a way that matters at once.
    Look,
    /// Print this line.
    Line(Line),
}

/// A message to the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToCoordinator {
    /// From the child: this descriptor is my process.
    Command,
    /// From the parent: release everything.
    Stop,
    /// From the process that waits for the lock: give up its places, because no reader of its
    /// output is left.
    Abandon,
    /// From the parent: end, and leave the leases as they are, because others look after them.
    Leave,
}
