//! The hashes of the log and the table, and the random numbers of registrations.

use sha2::{Digest, Sha256};

use canal_core::{Entry, HostId, Snapshot};
use canal_log::engine::encoding::json;
use canal_log::engine::{Hash, Link, Position};

/// Roughly how many bytes an entry adds to a batch.
pub(super) fn size(entry: &Entry) -> usize {
    json(entry).len() + 1
}

pub(super) fn table_hash(table: &Snapshot) -> Hash {
    Hash::of(&json(table))
}

/// The first link of a history.
pub(super) fn genesis(epoch: u128) -> Link {
    let hash = Sha256::new().chain_update("canal").chain_update(epoch.to_be_bytes()).finalize();
    Link { position: Position(0), hash: Hash(hash.into()) }
}

/// The next link of the chain, for a batch with this hash at `position`.
pub(super) fn next_link(before: Link, position: Position, body: Hash) -> Link {
    let digest = Sha256::new()
        .chain_update(before.hash.0)
        .chain_update(position.0.to_be_bytes())
        .chain_update(body.0)
        .finalize();
    Link { position, hash: Hash(digest.into()) }
}

/// The nonce of the `attempt`th registration, as random as the first.
pub(super) fn nonce(first: u128, attempt: u64) -> u128 {
    let digest =
        Sha256::new().chain_update(first.to_be_bytes()).chain_update(attempt.to_be_bytes());
    let bytes: [u8; 32] = digest.finalize().into();
    bytes.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// The name, for messages, of the author of an unreadable batch.
pub(super) fn author(host: HostId, sequence: u64) -> String {
    format!("batch {sequence} of host {host}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::snapshot_keeper::read_kept;
    use canal_log::engine::encoding::Unreadable;

    #[test]
    fn rule_01_a_snapshot_of_another_version_is_refused_by_its_first_line() {
        let body = b"canal snapshot 2 2\nwhat nobody knows yet";
        assert!(matches!(read_kept(body), Err(Unreadable::Version { .. })));
    }

    #[test]
    fn each_proposal_has_a_name_of_its_own() {
        assert_ne!(nonce(1, 0), nonce(1, 1));
        assert_ne!(nonce(1, 0), nonce(2, 0));
    }
}
