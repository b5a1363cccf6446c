//! The leases over nodes under which a process runs, as its environment passes them on.
//!
//! With them a request proves that it is made under these leases, so that their holds do not block
//! it. Each node sees only its own part.

use std::path::Path;

use crate::client::environment;
use crate::client::nodes::Node;
use canal_protocol::node_address::NodeAddress;
use canal_protocol::{Handle, NodeId};

use super::handle::{LEASE_HANDLE_CHARS_MAX, LeaseHandle};

/// The most leases that are passed on: the innermost ones.
const LEASES_MAX: usize = 4;

/// Leases over nodes, the outermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnclosingLeases(Vec<LeaseHandle>);

impl EnclosingLeases {
    /// The leases that the environment of this process names, without words that are not handles.
    #[must_use]
    pub fn of_environment() -> Self {
        Self::of_text(&std::env::var(environment::UNDER).unwrap_or_default())
    }

    fn of_text(text: &str) -> Self {
        let words = text.split(' ').filter(|word| word.len() <= LEASE_HANDLE_CHARS_MAX);
        Self(words.filter_map(|word| word.parse().ok()).collect())
    }

    /// Adds a lease inside these leases. `nodes` are those of its request, and `socket` is that of
    /// the daemon of this machine, which a list of nodes calls `local`.
    #[must_use]
    pub fn with(
        mut self,
        lease: impl FnOnce(&[Node]) -> LeaseHandle,
        nodes: &[Node],
        socket: &Path,
    ) -> Self {
        let mut nodes = nodes.to_vec();
        for node in nodes.iter_mut().filter(|node| node.address == NodeAddress::Local) {
            node.address = NodeAddress::Unix(socket.to_owned());
        }
        if LeaseHandle::fits(&nodes).is_ok() {
            self.0.push(lease(&nodes));
        }
        let outer = self.0.len().saturating_sub(LEASES_MAX);
        self.0.drain(..outer);
        self
    }

    /// The text for the environment.
    #[must_use]
    pub fn reveal(&self) -> String {
        let leases: Vec<String> = self.0.iter().map(LeaseHandle::reveal).collect();
        leases.join(" ")
    }

    /// The handle of the innermost lease at a node. A lease with this handle need not exist.
    #[must_use]
    pub fn handle(&self, node: NodeId) -> Option<Handle> {
        let innermost = self.0.iter().rev();
        let named = innermost.clone().find(|lease| lease.has_node(node));
        named.or(self.0.last()).map(|lease| lease.of_node(node))
    }

    /// The handle of the innermost lease at the daemon of a socket of this machine.
    #[must_use]
    pub fn at_socket(&self, socket: &Path) -> Option<Handle> {
        self.0.iter().rev().find_map(|lease| lease.of_socket(socket))
    }
}

#[cfg(test)]
mod tests {
    use super::super::handle::HeldPart;
    use super::super::secret::Secret;
    use super::*;

    fn node(address: &str) -> Node {
        Node { name: address.to_owned(), address: address.parse().unwrap(), canal: None }
    }

    fn with(around: EnclosingLeases, bits: u128, nodes: &[(&str, u128)]) -> EnclosingLeases {
        let list: Vec<Node> = nodes.iter().map(|(address, _)| node(address)).collect();
        let held = nodes.iter().enumerate().map(|(at, (_, id))| HeldPart {
            at,
            id: NodeId(*id),
            lease: 2,
            held: true,
        });
        let held: Vec<HeldPart> = held.collect();
        let secret = Secret::of(Handle::new(bits));
        let lease = |nodes: &[Node]| LeaseHandle::new(secret, Some(3), 60_000, 1, nodes, &held);
        around.with(lease, &list, Path::new("/here/s"))
    }

    fn handle(bits: u128, node: u128, lease: u32) -> Option<Handle> {
        Some(Secret::of(Handle::new(bits)).handle(NodeId(node), lease))
    }

    #[test]
    fn each_node_is_shown_the_innermost_lease_that_it_has() {
        let leases = with(EnclosingLeases::default(), 7, &[("local", 1), ("ssh:web", 2)]);
        let leases = with(leases, 8, &[("ssh:web", 2)]);
        let leases = EnclosingLeases::of_text(&leases.reveal());
        assert_eq!(leases.0.len(), 2);
        assert_eq!(leases.handle(NodeId(1)), handle(7, 1, 2));
        assert_eq!(leases.handle(NodeId(2)), handle(8, 2, 2));
        assert_eq!(leases.handle(NodeId(3)), handle(8, 3, 1), "it may have joined later");
        assert_eq!(leases.at_socket(Path::new("/here/s")), handle(7, 1, 2));
        assert_eq!(leases.at_socket(Path::new("/other/s")), None);
        assert_eq!(EnclosingLeases::default().handle(NodeId(1)), None);
    }

    #[test]
    fn what_is_no_handle_is_left_out_and_the_outermost_go_first() {
        let mut leases = EnclosingLeases::of_text("x n0123  nn");
        assert_eq!(leases, EnclosingLeases::default());
        for bits in 1..=6 {
            leases = with(leases, bits, &[("local", 1)]);
        }
        assert_eq!(leases.0.len(), LEASES_MAX);
        assert_eq!(leases.handle(NodeId(1)), handle(6, 1, 2));
    }
}
