//! The encoding of batches and snapshots in the engine.
//!
//! A body begins with a line that states its type, its format and its rules; JSON follows. From
//! this line, a host refuses a body of another version.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use canal_core::{Entry, HostId, RULES_VERSION, Snapshot};
use canal_log::engine::{Batch, FORMAT, Hash, Link, Position};

/// Why this host cannot use a body in the engine, and must stop reading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("another version wrote it: `{found}`, not `{expected}`")]
    Version { found: String, expected: String },
    #[error("it is damaged: {0}")]
    Damaged(String),
}

fn first_line(what: &str) -> String {
    format!("canal {what} {FORMAT} {RULES_VERSION}")
}

pub(super) fn write(what: &str, value: &impl Serialize) -> Vec<u8> {
    [first_line(what).as_bytes(), b"\n", &json(value)].concat()
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Plain data with string keys, into memory.
    serde_json::to_vec(value).unwrap_or_else(|error| unreachable!("no JSON: {error}"))
}

pub(super) fn read<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T, Unreadable> {
    let expected = first_line(what);
    let end = body.iter().take(100).position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| Unreadable::Damaged("it has no first line".to_owned()))?;
    if body[..end] != *expected.as_bytes() {
        let found = String::from_utf8_lossy(&body[..end]).escape_default().to_string();
        return Err(Unreadable::Version { found, expected });
    }
    serde_json::from_slice(&body[end + 1..]).map_err(|error| Unreadable::Damaged(error.to_string()))
}

pub(super) fn write_batch(batch: &Batch) -> Vec<u8> {
    write("batch", batch)
}

pub(super) fn read_batch(body: &[u8]) -> Result<Batch, Unreadable> {
    let batch: Batch = read("batch", body)?;
    if batch.entries.is_empty() {
        return Err(Unreadable::Damaged("it has no entries".to_owned()));
    }
    Ok(batch)
}

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
    use crate::host::snapshot_keeper::read_kept;
    use canal_core::{Change, ENTRY_VERSION, UnixMillis};

    fn batch() -> Batch {
        let change = Change::HostGone { host: HostId(1), by: HostId(2) };
        let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(7), change };
        let (host, sequence, seen) = (HostId(2), 3, genesis(9));
        Batch { host, sequence, seen, entries: vec![entry] }
    }

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let body = write_batch(&batch());
        assert!(body.starts_with(b"canal batch 1 1\n{"));
        assert_eq!(read_batch(&body), Ok(batch()));
    }

    #[test]
    fn rule_01_another_version_or_other_rules_are_refused_by_the_first_line() {
        let mut body = write_batch(&batch());
        body[14] = b'2';
        let refused = read_batch(&body).unwrap_err().to_string();
        assert_eq!(refused, "another version wrote it: `canal batch 1 2`, not `canal batch 1 1`");
        let body = b"canal batch 2 2\nwhat nobody knows yet";
        assert!(matches!(read_batch(body), Err(Unreadable::Version { .. })));
        assert!(matches!(read_kept(body), Err(Unreadable::Version { .. })));
    }

    #[test]
    fn damaged_bodies_are_refused_and_never_panic() {
        let body = write_batch(&batch());
        for end in 0..body.len() {
            assert!(read_batch(&body[..end]).is_err(), "cut at {end}");
        }
        for at in 0..body.len() {
            let mut body = body.clone();
            body[at] ^= 0x80;
            assert!(read_batch(&body).is_err(), "byte {at}");
        }
        let nothing = Batch { entries: Vec::new(), ..batch() };
        let body = write_batch(&nothing);
        assert!(matches!(read_batch(&body), Err(Unreadable::Damaged(_))));
    }

    #[test]
    fn each_proposal_has_a_name_of_its_own() {
        assert_ne!(nonce(1, 0), nonce(1, 1));
        assert_ne!(nonce(1, 0), nonce(2, 0));
    }
}
