//! Batches of entries and snapshots, as they are appended, stored and read.

use serde::{Deserialize, Serialize};

use super::position::{Hash, Link, Position};
use crate::core::{Entry, HostId};

/// What one host appends at once: all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The incarnation of the host that appends it.
    pub host: HostId,
    /// The number of the batch among those of this incarnation; the first is 1.
    pub sequence: u64,
    /// How far its author had read, and the hash of the chain there. A reader whose own hash at
    /// that position differs reads another history.
    pub seen: Link,
    /// At least one.
    pub entries: Vec<Entry>,
}

/// A batch as it lies in the log. `body` is what its author encoded, byte by byte: hashes are
/// computed from it, and the reader decodes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Where it lies.
    pub position: Position,
    /// Whose it is; also inside the body.
    pub host: HostId,
    /// Its number; also inside the body.
    pub sequence: u64,
    /// The encoded [`Batch`].
    pub body: Vec<u8>,
}

/// What identifies a batch that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// Where it lies.
    pub position: Position,
    /// Whose it is.
    pub host: HostId,
    /// Its number.
    pub sequence: u64,
    /// The SHA-256 of its body.
    pub body: Hash,
}

/// A snapshot of the table, which stands for all batches up to a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The last batch that is in it.
    pub position: Position,
    /// The encoded snapshot. The engine cuts it up as it needs.
    pub body: Vec<u8>,
}
