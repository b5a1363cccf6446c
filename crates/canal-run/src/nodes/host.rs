//! The interface between the driver of a coordinator and the process that it runs in.

use nix::poll::PollFd;
use serde::{Deserialize, Serialize};

use canal_lock::client::nodes::Node;
use canal_lock::client::nodes::known_nodes::KnownNode;
use canal_lock::client::nodes::lease::HeldPart;
use canal_lock::client::nodes::ssh::NodeFailure;
use canal_nodes::{Change, Checkpoint, Deadline, Millis, Outcome};
use canal_protocol::{CycleStepInfo, Failure, NodeId, Progress, Released, Renewed};

use super::messages::Start;

/// The process in which the driver of a coordinator runs.
pub trait Host {
    /// Saves the state that another coordinator needs to take over.
    fn keep(&mut self, _nodes: &[Named], _checkpoint: &Checkpoint) {}

    /// Publishes the deadline of the command.
    fn publish(&mut self, _deadline: Deadline) {}

    /// Lets the command start. `answers` are the nodes' last answers about an existing lease, in
    /// the order of the plan. Returns whether the driver continues.
    fn start(&mut self, _start: Start, _answers: &[PartAnswer]) -> bool {
        true
    }

    /// Called once after the start, when no further node is about to hold its part.
    fn settled(&mut self, _parts: &[HeldPart]) {}

    /// Kills the command at once, because the lock is lost.
    fn kill_now(&mut self) {}

    /// Reports something to the user.
    fn say(&mut self, word: &Word<'_>);

    /// The descriptors to poll besides the connections.
    fn polled(&self) -> Vec<PollFd<'_>> {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Stops, and keeps the reason if it is stopping already.
    pub(super) fn stop(&mut self) {
        if *self != Self::Abandon {
            *self = Self::Stop;
        }
    }
}

/// A node and its id, in the order of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Its place in the list of the user.
    pub at: usize,
    /// Its id.
    pub id: NodeId,
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

/// A report to the user. Nodes have the names that the user knows.
#[derive(Debug)]
pub enum Word<'a> {
    /// Nodes were met for the first time.
    Met {
        /// Each node and its identity.
        nodes: &'a [(&'a Node, KnownNode)],
    },
    /// A node that was never met is out of reach, and the request proceeds without it.
    LeftOut {
        /// Its name.
        name: &'a str,
        /// The reason.
        failure: &'a NodeFailure,
    },
    /// The request waits at a node.
    Waits {
        /// Its name.
        name: &'a str,
        /// The progress of its wait.
        progress: &'a Progress,
    },
    /// The request waits, and a deadlock over these nodes would go unnoticed, because they cannot
    /// be read.
    Unread {
        /// Their names, or their ids.
        nodes: &'a [String],
    },
    /// Any other change; `names` are those of the plan.
    Change {
        /// The change.
        change: &'a Change,
        /// The names of the nodes.
        names: &'a [&'a str],
    },
}

/// How a request ended, with the names of its nodes.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The outcome.
    pub outcome: Outcome,
    /// The names of the nodes of the plan.
    pub names: Vec<String>,
    /// Advice for the user.
    pub hint: Option<String>,
    /// The nodes' last answers about an existing lease, in the order of the plan.
    pub answers: Vec<PartAnswer>,
    /// For a deadlock: the ring, the refused request first.
    pub cycle: Vec<CycleStepInfo>,
}
