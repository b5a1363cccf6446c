//! A request over nodes, as its caller makes it.

use canal_core::FrameId;
use canal_lock::client::Options;
use canal_lock::client::nodes::Node;
use canal_lock::client::nodes::known_nodes::KnownNodes;
use canal_lock::client::nodes::lease::{EnclosingLeases, LeaseHandle, Secret};
use canal_nodes::Require;
use canal_protocol::Acquire;
use canal_protocol::place::Place;
use canal_sys::clock::boottime_ms;

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

/// The request to the nodes.
#[derive(Clone, Debug)]
pub struct NodesRequest {
    /// The request as one daemon would get it. Its time to wait is for all nodes together.
    pub asked: Acquire,
    /// The nodes, in the order in which the user named them.
    pub nodes: Vec<Node>,
    /// How many of them must grant it.
    pub require: Require,
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
    /// [`LeaseHandle::addresses`], under the user's names; each renewal carries `note` and
    /// `new_ttl_ms`.
    #[must_use]
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
            ttl_ms: new_ttl_ms.unwrap_or(handle.ttl_ms()),
            new_ttl_ms,
            asked_at: boottime_ms(),
            secret: handle.secret(),
        }
    }

    /// Whether it is made within a run over nodes, or within a command that canal runs here.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        self.asked.under_run.is_some() || self.under_frame.is_some()
    }
}
