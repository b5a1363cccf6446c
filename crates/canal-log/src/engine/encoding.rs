//! The encoding of batches and snapshots in the engine.
//!
//! A body begins with a line that states its type, its format and its rules; JSON follows. From
//! this line, a host refuses a body of another version.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Batch;
use canal_core::RULES_VERSION;

/// The version of the stored data: its layout, its encoding and the rules of the table. The engine
/// refuses hosts of another version.
pub const FORMAT: u32 = 1;

/// Why this host cannot use a body in the engine, and must stop reading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Another version of canal wrote it.
    #[error("another version wrote it: `{found}`, not `{expected}`")]
    Version {
        /// Its first line.
        found: String,
        /// The first line that this version writes.
        expected: String,
    },
    /// It is not what canal wrote, for this reason.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

fn first_line(what: &str) -> String {
    format!("canal {what} {FORMAT} {RULES_VERSION}")
}

/// Encodes a value of this type.
pub fn write(what: &str, value: &impl Serialize) -> Vec<u8> {
    [first_line(what).as_bytes(), b"\n", &json(value)].concat()
}

/// A value as JSON.
pub fn json(value: &impl Serialize) -> Vec<u8> {
    // Plain data with string keys, into memory.
    serde_json::to_vec(value).unwrap_or_else(|error| unreachable!("no JSON: {error}"))
}

/// Decodes a value of this type.
///
/// # Errors
/// [`Unreadable`].
pub fn read<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T, Unreadable> {
    let expected = first_line(what);
    let end = body.iter().take(100).position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| Unreadable::Damaged("it has no first line".to_owned()))?;
    if body[..end] != *expected.as_bytes() {
        let found = String::from_utf8_lossy(&body[..end]).escape_default().to_string();
        return Err(Unreadable::Version { found, expected });
    }
    serde_json::from_slice(&body[end + 1..]).map_err(|error| Unreadable::Damaged(error.to_string()))
}

impl Batch {
    /// The body of the batch in the log.
    pub fn encode(&self) -> Vec<u8> {
        write("batch", self)
    }

    /// The batch that has this body.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn decode(body: &[u8]) -> Result<Self, Unreadable> {
        let batch: Self = read("batch", body)?;
        if batch.entries.is_empty() {
            return Err(Unreadable::Damaged("it has no entries".to_owned()));
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Hash, Link, Position};
    use canal_core::{Change, ENTRY_VERSION, Entry, HostId, UnixMillis};

    fn batch() -> Batch {
        let change = Change::HostGone { host: HostId(1), by: HostId(2) };
        let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(7), change };
        let seen = Link { position: Position(0), hash: Hash::of(b"the beginning") };
        Batch { host: HostId(2), sequence: 3, seen, entries: vec![entry] }
    }

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let body = batch().encode();
        assert!(body.starts_with(b"canal batch 1 1\n{"));
        assert_eq!(Batch::decode(&body), Ok(batch()));
    }

    #[test]
    fn rule_01_another_version_or_other_rules_are_refused_by_the_first_line() {
        let mut body = batch().encode();
        body[14] = b'2';
        let refused = Batch::decode(&body).unwrap_err().to_string();
        assert_eq!(refused, "another version wrote it: `canal batch 1 2`, not `canal batch 1 1`");
        let body = b"canal batch 2 2\nwhat nobody knows yet";
        assert!(matches!(Batch::decode(body), Err(Unreadable::Version { .. })));
    }

    #[test]
    fn damaged_bodies_are_refused_and_never_panic() {
        let body = batch().encode();
        for end in 0..body.len() {
            assert!(Batch::decode(&body[..end]).is_err(), "cut at {end}");
        }
        for at in 0..body.len() {
            let mut body = body.clone();
            body[at] ^= 0x80;
            assert!(Batch::decode(&body).is_err(), "byte {at}");
        }
        let nothing = Batch { entries: Vec::new(), ..batch() };
        assert!(matches!(Batch::decode(&nothing.encode()), Err(Unreadable::Damaged(_))));
    }
}
