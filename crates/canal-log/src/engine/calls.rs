//! What a host and an engine tell each other: calls and answers, and their parts.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use canal_core::{Entry, HostId};

/// A call of a host to the engine.
#[derive(Clone, Debug)]
pub enum Call {
    /// Requests a new incarnation, which lives from now on. Answered by `Answer::Registered`. A
    /// repeated call with the same nonce takes no second one.
    Register(Registration),
    /// Withdraws an incarnation that has appended nothing, so that no host waits for its end. An
    /// incarnation that has appended a batch stays. Answered by `Answer::Withdrawn`.
    Withdraw {
        /// The incarnation.
        host: HostId,
    },
    /// Reads the snapshot and all batches after it, and continues with those appended from then on.
    /// Answered by `Answer::Loaded`, later by `Answer::Batches`.
    Load,
    /// Continues reading after a batch that was read, or from the beginning of the log if `None`.
    /// If that batch is still in the log, answered by `Answer::Batches`, now (perhaps without any)
    /// and for each batch appended from then on; otherwise by `Answer::Rewritten` or
    /// `Answer::Compacted`.
    Follow {
        /// The last batch that was read.
        after: Option<Read>,
    },
    /// Appends a batch. Answered by `Answer::Appended`, `Answer::Fenced` or `Answer::Overtaken`. At
    /// most one is in flight; the same one may be repeated.
    Append(Append),
    /// Reports that the incarnation lives. Answered by `Answer::Renewed` or `Answer::Fenced`.
    Renew {
        /// The incarnation.
        host: HostId,
        /// Returned in the answer: the caller's CLOCK_BOOTTIME before the call, in milliseconds.
        asked_at: u64,
    },
    /// Starts or stops the announcements of batches that others append, and reads everything that
    /// is in the log by then. A connection begins with announcements; without them,
    /// `Answer::Batches` comes only after this host's own calls. Answered by `Answer::Attends`,
    /// after the batches. Only for an engine that lets hosts rest, and one at a time.
    Attend {
        /// Whether to announce batches.
        listens: bool,
    },
    /// Replaces the snapshot, then drops the batches that it includes. Answered by
    /// `Answer::Stored`. Has no effect if the snapshot is older than the stored one, or if the log
    /// does not reach its position: it then belongs to a history that the engine has lost.
    Store(Stored),
}

/// A request for a new incarnation.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The daemon that calls.
    pub identity: Identity,
    /// Identifies the request; random.
    pub nonce: u128,
    /// The requested time to live, in milliseconds.
    pub ttl_ms: u64,
    /// Returned in the answer: the caller's CLOCK_BOOTTIME before the call, in milliseconds.
    pub asked_at: u64,
}

/// A batch to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// Its author.
    pub host: HostId,
    /// Its number: that of this incarnation's last one, plus 1.
    pub sequence: u64,
    /// The encoded `Batch`.
    pub body: Vec<u8>,
    /// The incarnation that ends with it, in the same transaction.
    pub ends: Option<Ends>,
}

/// The end of an incarnation, which is also an entry in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The incarnation.
    pub host: HostId,
    /// The condition for it.
    pub evidence: Evidence,
}

/// The condition for ending an incarnation. In each case, the engine must not know of its end yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The engine itself knows that it did not renew in time.
    Lapsed,
    /// It has not renewed since it had this count of renewals.
    Silent {
        /// The count.
        renewals: u64,
    },
    /// The engine has no record of it, not even of its end: a person removed it.
    Unknown,
    /// The caller has its identity and takes its place, or is the incarnation itself, or comes from
    /// another boot of its machine.
    Own,
}

/// An answer of the engine.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Answers `Register`.
    Registered {
        /// The new incarnation; greater than all before it.
        host: HostId,
        /// The time to live that the engine grants, in milliseconds.
        ttl_ms: u64,
        /// The `asked_at` of the call.
        asked_at: u64,
        /// The history of the log; another one after the log was recreated.
        epoch: u128,
        /// Incarnations of the same label that have not ended.
        others: Vec<Claimant>,
    },
    /// Answers `Withdraw`: the incarnation is gone, or has appended a batch.
    Withdrawn {
        /// The incarnation.
        host: HostId,
    },
    /// Answers `Load`.
    Loaded {
        /// The snapshot, if there is one.
        snapshot: Option<Stored>,
        /// All batches after it that exist now.
        batches: Vec<Placed>,
    },
    /// Answers `Load` and `Follow`: the next batches, in order, without a gap to those before.
    Batches(Vec<Placed>),
    /// The batches read differ from those in the log, or are no longer in it: history was
    /// rewritten.
    Rewritten,
    /// A snapshot has replaced the batches after those read: load again.
    Compacted,
    /// The batch is in the log. Its echo among the batches may come before or after this.
    Appended {
        /// Its author.
        host: HostId,
        /// Its number.
        sequence: u64,
        /// Its position.
        position: Position,
    },
    /// The evidence for the end of an incarnation does not hold; nothing was appended.
    Overtaken {
        /// The author of the batch.
        host: HostId,
        /// The number of the batch, which another one may have by now.
        sequence: u64,
        /// The end that the batch contained.
        ends: Option<Ends>,
    },
    /// The incarnation has ended, or another process appends in its name. Nothing was appended.
    Fenced {
        /// The incarnation in the call.
        host: HostId,
        /// The reason, for people.
        why: String,
    },
    /// Answers `Renew`.
    Renewed {
        /// The `asked_at` of the call.
        asked_at: u64,
        /// The time to live from `asked_at`, in milliseconds.
        ttl_ms: u64,
        /// The position of the last batch.
        head: Position,
        /// All incarnations that have not ended.
        hosts: Vec<Alive>,
    },
    /// Answers `Store`.
    Stored {
        /// The position of the snapshot that is now stored.
        position: Position,
    },
    /// Answers `Attend`: the host has all batches that were in the log when the engine carried out
    /// the call.
    Attends {
        /// Whether batches are announced.
        listens: bool,
    },
    /// The engine is unusable for now. Pending calls may have been carried out or not. Sent again
    /// if the reason changes.
    Away(Outage),
    /// The engine is reachable but stores nothing, for this reason; calls wait. `None`: it stores
    /// again.
    Full(Option<Outage>),
    /// The engine is reachable again; repeat every call that has no answer.
    Back,
}

/// An incarnation that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    /// The incarnation.
    pub host: HostId,
    /// Its time to live, in milliseconds.
    pub ttl_ms: u64,
    /// Its sign of life.
    pub sign: Sign,
}

/// An incarnation's sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The engine watches it and reports that it lives.
    Watched,
    /// The engine watches it and reports that it did not renew in time.
    Lapsed,
    /// Its count of renewals; observers judge by their own clock.
    Renewals(u64),
}

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

/// The identity of a daemon: the same for a daemon that is restarted in the same place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The host's name in messages.
    pub label: String,
    /// The machine's id (`/etc/machine-id`), or empty without one.
    pub machine: String,
    /// The boot (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// The inode of the daemon's pid namespace.
    pub pid_namespace: u64,
    /// The daemon's user.
    pub uid: u32,
    /// The directory of its socket.
    pub dir: String,
    /// A random number in that directory: another mount namespace may have another directory
    /// with that name.
    pub dir_number: u64,
}

/// An incarnation that has not ended and has the label of one that registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Its number. After the engine has lost history, another incarnation may get the same one.
    pub host: HostId,
    /// The nonce with which it registered, which is unique in every history.
    pub nonce: u128,
    /// Its daemon.
    pub identity: Identity,
}

/// Why the engine is unusable for now. None of it is final: an operator can repair it, and canal
/// keeps trying.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Outage {
    /// The error, as canal shows it.
    pub why: String,
    /// The action to take.
    pub hint: Option<String>,
    /// Whether a person has to act before the engine can be used: a password is wrong, a
    /// certificate has expired. An engine that is merely silent may come back unaided.
    pub refused: bool,
}

impl Outage {
    /// The engine cannot be reached.
    pub fn unreachable(why: impl Into<String>) -> Self {
        Self { why: why.into(), hint: None, refused: false }
    }

    /// The engine is unusable at present.
    pub fn refused(why: impl Into<String>, hint: Option<&str>) -> Self {
        Self { why: why.into(), hint: hint.map(str::to_owned), refused: true }
    }

    /// The address names another table than before. A daemon stays with its first table.
    pub(in crate::engine) fn moved() -> Self {
        let hint = "run `canal daemon --replace` to change to the other one";
        Self::refused("the configuration now names another table", Some(hint))
    }
}

/// The text of the innermost cause: the errors around it ("transport error") add nothing useful.
#[cfg(any(feature = "etcd", feature = "postgres"))]
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    let text = inner.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}

/// The place of a batch in the engine's total order. Later batches have greater ones; there may be
/// gaps between them. 0 is before the first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub u64);

/// A SHA-256 hash, in hexadecimal when written.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Hash(#[serde(with = "const_hex::serde")] pub [u8; 32]);

impl Hash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&const_hex::encode(self.0))
    }
}

/// A point of the hash chain: the hash covers the whole log up to this position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The position.
    pub position: Position,
    /// The chain's hash there.
    pub hash: Hash,
}
