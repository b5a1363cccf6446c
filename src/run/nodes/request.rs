//! A request over nodes as its caller makes it.

use crate::client::Options;
use crate::client::nodes::list::Node;
use crate::client::nodes::pins::Pins;
use crate::core::FrameId;
use crate::nodes::Require;
use crate::protocol::place::Place;
use crate::protocol::{RunId, WireItem};
use crate::sys::clock::boottime_ms;

use super::lease::enclosing::EnclosingLeases;
use super::lease::handle::LeaseHandle;
use super::lease::secret::Secret;

/// What is asked of the nodes.
#[derive(Clone, Debug)]
pub struct NodesRequest {
    /// The nodes, in the order in which the user named them.
    pub nodes: Vec<Node>,
    /// How many of them must grant it.
    pub require: Require,
    /// For how many milliseconds each keeps its lease without a renewal.
    pub ttl_ms: u64,
    /// Of a lease that is renewed: the TTL that it has from then on, if it is to be another one.
    pub new_ttl_ms: Option<u64>,
    /// The items, the same at each node.
    pub items: Vec<WireItem>,
    /// How long to wait in milliseconds, over all nodes together; 0 = not at all, absent = for ever.
    pub wait_ms: Option<u64>,
    /// When it was made, in milliseconds of CLOCK_BOOTTIME: the time to wait begins then, whichever
    /// coordinator asks.
    pub asked_at: u64,
    /// Higher goes first.
    pub priority: i32,
    /// Refused if so many wait for one of its keys already.
    pub max_waiting: Option<u64>,
    /// What to show of the owner.
    pub command: String,
    /// What people are to know about it.
    pub note: Option<String>,
    /// The names and secrets of its leases.
    pub secret: Secret,
    /// The place that all commands of this machine use.
    pub here: Place,
    /// How a daemon is started there.
    pub options: Options,
    /// What the nodes were when they were met first.
    pub pins: Pins,
    /// The run over nodes within which it is asked for, as the environment says.
    pub under_run: Option<RunId>,
    /// The frame of this machine's daemon within which it is asked for, as the environment says. It lies
    /// within `under_run` if there are both.
    pub under_frame: Option<FrameId>,
    /// The leases over nodes within which it is asked for.
    pub under: EnclosingLeases,
    /// Other nodes at which a deadlock may go on, if it is asked for within something.
    pub near: Vec<Node>,
}

impl NodesRequest {
    /// A request that asks for nothing new, about a lease that was taken before. `nodes` are those of
    /// [`LeaseHandle::addresses`], as their user
    /// calls them; `note` and `new_ttl_ms` are given with each renewal.
    #[must_use]
    pub fn of_lease(
        handle: &LeaseHandle,
        nodes: Vec<Node>,
        note: Option<String>,
        new_ttl_ms: Option<u64>,
        here: Place,
        options: Options,
    ) -> Self {
        Self {
            under_run: None,
            under_frame: None,
            under: EnclosingLeases::default(),
            near: Vec::new(),
            nodes,
            require: Require::All,
            ttl_ms: new_ttl_ms.unwrap_or(handle.ttl_ms()),
            new_ttl_ms,
            items: Vec::new(),
            wait_ms: None,
            asked_at: boottime_ms(),
            priority: 0,
            max_waiting: None,
            command: String::new(),
            note,
            secret: handle.secret(),
            pins: Pins::of(&here),
            here,
            options,
        }
    }

    /// Whether it is asked for within a run over nodes, or within a command that canal runs here.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        self.under_run.is_some() || self.under_frame.is_some()
    }
}
