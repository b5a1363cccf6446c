//! Batches of entries and snapshots, as hosts append, store and read them.

use serde::{Deserialize, Serialize};

use super::position::{Hash, Link, Position};
use canal_core::{Entry, HostId};

/// The entries that one host appends at once: all or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The incarnation of the host that appends it.
    pub host: HostId,
    /// The number of the batch among those of this incarnation; the first is 1.
    pub sequence: u64,
    /// The position up to which its author had read, and the hash of the chain there. A reader
    /// whose own hash at that position differs reads another history.
    pub seen: Link,
    /// At least one.
    pub entries: Vec<Entry>,
}

/// A batch in the log. `body` is exactly what its author encoded: hashes are computed from it, and
/// readers decode it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its position.
    pub position: Position,
    /// Its author; also in the body.
    pub host: HostId,
    /// Its number; also in the body.
    pub sequence: u64,
    /// The encoded [`Batch`].
    pub body: Vec<u8>,
}

impl Placed {
    /// Its identity, for a reader.
    #[must_use]
    pub fn read(&self) -> Read {
        let Self { position, host, sequence, ref body } = *self;
        Read { position, host, sequence, body: Hash::of(body) }
    }
}

/// The identity of a batch that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// Its position.
    pub position: Position,
    /// Its author.
    pub host: HostId,
    /// Its number.
    pub sequence: u64,
    /// The SHA-256 of its body.
    pub body: Hash,
}

/// A snapshot of the table, which replaces all batches up to a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The last batch that it includes.
    pub position: Position,
    /// The encoded snapshot. The engine divides it as needed.
    pub body: Vec<u8>,
}
