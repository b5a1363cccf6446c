//! The secret of a request over nodes, and the values derived from it for each node.

use hmac_sha256::HMAC;

use crate::client::ClientError;
use canal_protocol::{Handle, NodeId, RunId, Tag};

/// The source of the names and secrets of all leases of one request. Each node learns only those of
/// its own leases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(u128);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// A new random secret.
    ///
    /// # Errors
    /// The system cannot provide randomness.
    pub fn new() -> Result<Self, ClientError> {
        crate::client::tag().map(|Tag(bits)| Self(bits))
    }

    /// The secret that a text shows.
    #[must_use]
    pub fn of(handle: Handle) -> Self {
        Self(handle.bits())
    }

    /// The text of the secret, for a handle.
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
        let mut hash = HMAC::new(self.0.to_be_bytes());
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
