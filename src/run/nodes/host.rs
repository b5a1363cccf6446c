//! What the driver of a coordinator asks of the process that it runs in.

use nix::poll::PollFd;
use serde::{Deserialize, Serialize};

use crate::client::nodes::list::Node;
use crate::client::nodes::pins::Pin;
use crate::client::nodes::ssh::NodeFailure;
use crate::nodes::{Change, Deadline, Millis, Outcome, Standing};
use crate::protocol::{CycleStepInfo, Failure, Grant, NodeId, Progress, Released, Renewed};

/// What the driver of a coordinator asks of the process that it runs in.
pub trait Host {
    /// Keeps what another coordinator must know to take over.
    fn keep(&mut self, nodes: &[Named], standing: &Standing);

    /// Makes the deadline of the command known.
    fn publish(&mut self, deadline: Deadline);

    /// Lets the command start. Returns whether the driver goes on.
    fn start(&mut self, started: &Started) -> bool;

    /// After the start: no other node is about to hold its part, too. It is told once.
    fn settled(&mut self, _parts: &[HeldPart]) {}

    /// The lock is lost: the command must be killed at once.
    fn kill_now(&mut self);

    /// Tells people.
    fn say(&mut self, word: &Word<'_>);

    /// What to poll besides the connections.
    fn polled(&self) -> Vec<PollFd<'_>>;

    /// Looks at what was polled, and at what is due by now.
    fn turn(&mut self, now: Millis) -> Wish;

    /// When [`Self::turn`] is to be called at the latest.
    fn due(&self) -> Option<Millis>;
}

/// What the host wants of its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To go on.
    GoOn,
    /// To give everything back and end: the command has ended, or the caller wants no lock any more.
    Stop,
    /// The same while the request waits: nobody can read what comes of it.
    Abandon,
    /// To end, and to leave what is held as it is: others look after it.
    Leave,
}

impl Wish {
    /// Stops, for the reason that it stops already if it does.
    pub(super) fn stop(&mut self) {
        if *self != Self::Abandon {
            *self = Self::Stop;
        }
    }
}

/// A node and what it is called, in the order of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its place in the list of the user.
    pub at: usize,
    /// Its id.
    pub id: NodeId,
}

/// The lock is held.
#[derive(Clone, Debug)]
pub struct Started {
    /// The fencing token; `None` where the requirement excludes nobody.
    pub token: Option<u64>,
    /// The nodes that hold it, by their index in the plan, each with what it granted and the number
    /// of its lease.
    pub parts: Vec<StartedPart>,
    /// What the nodes said last of a lease that was taken before, in the order of the plan.
    pub answers: Vec<PartAnswer>,
}

/// What is known of the part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPart {
    /// The place of the node in the list of the user.
    pub at: usize,
    /// Its id.
    pub id: NodeId,
    /// The number of the lease that it was asked for last; 0 if it was not asked.
    pub lease: u32,
    /// Whether the node has confirmed it.
    pub held: bool,
}

/// What a node said last of its part of a lease.
#[derive(Clone, Debug)]
pub struct PartAnswer {
    /// What its user calls the node.
    pub name: String,
    /// What it said; `None` if it said nothing of its part.
    pub said: Option<PartSaid>,
    /// What was seen last of it, if that was no such answer.
    pub trouble: Option<PartTrouble>,
}

/// Why a node did not say anything of its part of a lease.
#[derive(Clone, Debug)]
pub enum PartTrouble {
    /// It cannot be reached, and why.
    Away(String),
    /// It answered that it does not do what was asked, and why. Its part stays as it is.
    Refused(String),
}

/// What a node said of its part of a lease.
#[derive(Clone, Debug)]
pub enum PartSaid {
    /// It was renewed.
    Renewed(Box<Renewed>),
    /// It was given back.
    Released(Box<Released>),
    /// The node does not have it any more.
    Lost(Box<Failure>),
}

/// A node that holds its part.
#[derive(Clone, Debug)]
pub struct StartedPart {
    /// The place of the node in the list of the user.
    pub at: usize,
    /// What its user calls it.
    pub name: String,
    /// Its id.
    pub id: NodeId,
    /// The number of its lease.
    pub lease: u32,
    /// What it granted; `None` if an earlier coordinator was told.
    pub grant: Option<Grant>,
}

/// What people are told. Names of nodes are those that the user knows.
#[derive(Debug)]
pub enum Word<'a> {
    /// Nodes were met for the first time.
    Met {
        /// Each, and what it is.
        nodes: &'a [(&'a Node, Pin)],
    },
    /// A node that was never met cannot be reached, and the request does without it.
    LeftOut {
        /// Its name.
        name: &'a str,
        /// Why.
        failure: &'a NodeFailure,
    },
    /// The request waits at a node.
    Waits {
        /// Its name.
        name: &'a str,
        /// For what.
        progress: &'a Progress,
    },
    /// The request waits, and a deadlock over these nodes would not be found: they cannot be read.
    Unread {
        /// Their names, or their ids.
        nodes: &'a [String],
    },
    /// Anything else; `names` are those of the plan.
    Change {
        /// What has changed.
        change: &'a Change,
        /// The names of the nodes.
        names: &'a [&'a str],
    },
}

/// How a request ended, with the names of its nodes.
#[derive(Clone, Debug)]
pub struct Ending {
    /// How.
    pub outcome: Outcome,
    /// The names of the nodes of the plan.
    pub names: Vec<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// What the nodes said last of a lease that was taken before, in the order of the plan.
    pub answers: Vec<PartAnswer>,
    /// Of a deadlock: the ring, the refused request first.
    pub cycle: Vec<CycleStepInfo>,
}
