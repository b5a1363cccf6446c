//! The keys in etcd, below the prefix:
//!
//! | key | holds | is deleted |
//! |---|---|---|
//! | `meta` | [`Meta`]: format and epoch | never |
//! | `era` | the last [`Era`](crate::engine::era::Era) that the log names | never |
//! | `next` | the number of the last incarnation | never |
//! | `head` | nothing: its revision is the position of the last batch | never |
//! | `names/<incarnation>` | [`Name`]: its identity | with its end |
//! | `state/<incarnation>` | [`State`]: its last batch | with its end |
//! | `hosts/<incarnation>` | nothing: attached to its lease | with its end, or without renewal |
//! | `log/<incarnation>/<sequence>` | a batch; incarnation 0: an era | when a snapshot covers it |
//! | `snapshot/pointer` | [`Pointer`] to the snapshot | never |
//! | `snapshot/<name>/<number>` | a piece of a snapshot | when there is a newer one |
//!
//! Invariant: an incarnation that has not ended has `names` and `state`; one that has ended has
//! neither. A batch's position is the revision of the transaction that put it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{EtcdError, Result};
use super::messages::{KeyValue, Ranged};
use crate::engine::{Hash, Identity, Position};
use canal_core::HostId;

/// The keys below a prefix that ends with `/`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Keys(String);

macro_rules! keys {
    ($($name:ident($($part:ident: $type:ty),*) = $key:literal)*) => {
        $(pub(super) fn $name(&self $(, $part: $type)*) -> Vec<u8> {
            format!("{}{}", self.0, format_args!($key)).into_bytes()
        })*
    };
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self(prefix.to_owned())
    }

    keys! {
        everything() = ""
        // Tests the right to write.
        never_written() = "never-written"
        meta() = "meta"
        era() = "era"
        next() = "next"
        head() = "head"
        names() = "names/"
        name(host: HostId) = "names/{host}"
        states() = "state/"
        state(host: HostId) = "state/{host}"
        hosts() = "hosts/"
        host(host: HostId) = "hosts/{host}"
        log() = "log/"
        batch(host: HostId, sequence: u64) = "log/{host}/{sequence}"
        pointer() = "snapshot/pointer"
        snapshots() = "snapshot/"
        pieces(name: &str) = "snapshot/{name}/"
        piece(name: &str, number: u64) = "snapshot/{name}/{number}"
    }

    /// The batch to which this key belongs.
    pub(super) fn batch_in(&self, key: &[u8]) -> Option<(HostId, u64)> {
        let (host, sequence) = below(&self.log(), key)?.split_once('/')?;
        Some((HostId(host.parse().ok()?), sequence.parse().ok()?))
    }

    /// The position of the snapshot to which this key belongs; `None` for the pointer.
    pub(super) fn piece_in(&self, key: &[u8]) -> Option<Position> {
        let (name, _) = below(&self.snapshots(), key)?.split_once('/')?;
        let (position, _) = name.split_once('-')?;
        position.parse().ok().map(Position)
    }
}

/// The rest of a key that has this prefix.
fn below<'a>(prefix: &[u8], key: &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(key.strip_prefix(prefix)?).ok()
}

impl Ranged {
    /// The decoded value of the only key, if it exists, and the revision that put it.
    pub(super) fn value<T: DeserializeOwned>(&self) -> Result<Option<(T, i64)>> {
        self.kvs.first().map(|kv| Ok((decode(kv)?, kv.mod_revision))).transpose()
    }

    /// The keys that consist of `prefix` and the number of a host.
    pub(super) fn of_hosts(&self, prefix: Vec<u8>) -> impl Iterator<Item = (HostId, &KeyValue)> {
        let host = move |kv: &KeyValue| Some(HostId(below(&prefix, &kv.key)?.parse().ok()?));
        self.kvs.iter().filter_map(move |kv| Some((host(kv)?, kv)))
    }
}

/// The part of [`Meta`] that every format has.
#[derive(Deserialize)]
pub(super) struct Format {
    pub(super) format: u32,
}

/// The format and the epoch of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) format: u32,
    #[serde(with = "const_hex::serde")]
    pub(super) epoch: [u8; 16],
}

/// The identity of an incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Name {
    pub(super) identity: Identity,
    #[serde(with = "const_hex::serde")]
    pub(super) nonce: [u8; 16],
}

/// The last batch of an incarnation; its position is the key's revision. The key's version is the
/// batch's number plus 1, because each append puts the key once; an append compares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) sequence: u64,
    /// The SHA-256 of its body, hexadecimal; empty before the first.
    pub(super) body: String,
    pub(super) ttl_ms: u64,
}

/// The location of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pointer {
    /// The last batch that it includes.
    pub(super) position: Position,
    /// Its pieces are `snapshot/<name>/0` to `pieces` − 1.
    pub(super) name: String,
    pub(super) pieces: u64,
    /// That of the whole.
    pub(super) body: Hash,
}

/// Decodes a value that canal wrote; the prefix is canal's alone.
pub(super) fn decode<T: DeserializeOwned>(kv: &KeyValue) -> Result<T> {
    serde_json::from_slice(&kv.value).map_err(|error| {
        let key = String::from_utf8_lossy(&kv.key);
        EtcdError::refused(
            format!("the key `{key}` in etcd does not belong to canal: {error}"),
            "give canal its own prefix: etcd://host/prefix",
        )
    })
}

/// A revision as a position.
pub(super) fn position(revision: i64) -> Position {
    Position(u64::try_from(revision).unwrap_or_default())
}

/// A position as a revision.
pub(super) fn revision(position: Position) -> i64 {
    i64::try_from(position.0).unwrap_or(i64::MAX)
}
