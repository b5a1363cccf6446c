//! A host's calls to the engine.

use super::batch::{Read, Stored};
use super::identity::{Era, Identity};
use canal_core::HostId;

/// A call of a host to the engine.
#[derive(Clone, Debug)]
pub enum Call {
    /// Requests a new incarnation, which lives from now on. Answered by `Answer::Registered`. A
    /// repeated call with the same nonce takes no second one.
    Register {
        /// The daemon that calls.
        identity: Identity,
        /// Identifies the request; random.
        nonce: u128,
        /// The requested time to live, in milliseconds.
        ttl_ms: u64,
        /// Returned in the answer: the caller's CLOCK_BOOTTIME before the call, in milliseconds.
        asked_at: u64,
    },
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
    /// Notes an era in the log, by a batch whose author is [`HostId`] 0, if the engine's last noted
    /// era is still `before`. There is no answer: the engine either carries out the calls that
    /// waited for it, or sends `Answer::NewEra` again.
    NoteEra {
        /// The last era that `Answer::NewEra` named.
        before: Option<Era>,
        /// The era that begins.
        era: Era,
        /// The encoded `Batch`, numbered like the era.
        body: Vec<u8>,
    },
    /// Replaces the snapshot, then drops the batches that it includes. Answered by
    /// `Answer::Stored`. Has no effect if the snapshot is older than the stored one, or if the log
    /// does not reach its position: it then belongs to a history that the engine has lost.
    Store(Stored),
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
