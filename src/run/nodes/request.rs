//! A request over nodes as its caller makes it, and what is derived from it for each node.

use sha2::{Digest, Sha256};

use crate::client::nodes::list::Node;
use crate::client::nodes::pins::Pins;
use crate::client::{ClientError, Options};
use crate::core::FrameId;
use crate::nodes::Require;
use crate::protocol::place::Place;
use crate::protocol::{Handle, NodeId, RunId, Tag, WireItem};

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
    /// Other nodes at which a deadlock may go on, if it is asked for within something.
    pub near: Vec<Node>,
}

impl NodesRequest {
    /// Whether it is asked for within a run over nodes, or within a command that canal runs here.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        self.under_run.is_some() || self.under_frame.is_some()
    }
}

/// From this the names and secrets of all leases of one request follow. Each node learns only those
/// of its own leases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(u128);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// A new random one.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn new() -> Result<Self, ClientError> {
        crate::client::tag().map(|Tag(bits)| Self(bits))
    }

    /// One that was shown as text before.
    #[must_use]
    pub fn of(handle: Handle) -> Self {
        Self(handle.bits())
    }

    /// For the text of a handle.
    #[must_use]
    pub fn as_handle(self) -> Handle {
        Handle::new(self.0)
    }

    /// The public name of the request.
    #[must_use]
    pub fn run(self) -> RunId {
        RunId(self.derived("run", NodeId(0), 0))
    }

    /// The secret of a lease of a node.
    #[must_use]
    pub fn handle(self, node: NodeId, lease: u32) -> Handle {
        Handle::new(self.derived("handle", node, lease))
    }

    /// The name of the request for a lease of a node.
    #[must_use]
    pub fn tag(self, node: NodeId, lease: u32) -> Tag {
        Tag(self.derived("tag", node, lease))
    }

    fn derived(self, what: &str, node: NodeId, lease: u32) -> u128 {
        let mut hash = Sha256::new();
        hash.update(self.0.to_be_bytes());
        hash.update(node.0.to_be_bytes());
        hash.update(lease.to_be_bytes());
        hash.update(what);
        let mut first = [0; 16];
        first.copy_from_slice(&hash.finalize()[..16]);
        u128::from_be_bytes(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lease_has_a_name_and_a_secret_of_its_own() {
        let secret = Secret(7);
        let mut all = vec![secret.run().0, 7, Secret(8).run().0];
        for node in [NodeId(1), NodeId(2)] {
            for lease in [1, 2] {
                all.extend([secret.handle(node, lease).bits(), secret.tag(node, lease).0]);
            }
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert_eq!(Secret::of(secret.as_handle()), secret);
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }
}
