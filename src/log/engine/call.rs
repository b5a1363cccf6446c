//! What a host asks of the engine.

use super::batch::{Read, Stored};
use super::identity::{Era, Identity};
use crate::core::HostId;

/// What a host asks of the engine.
#[derive(Clone, Debug)]
pub enum Call {
    /// Takes a new incarnation, which lives from now on. Answered by `Answer::Registered`. Asking
    /// again with the same nonce takes no second one.
    Register {
        /// The daemon that asks.
        identity: Identity,
        /// Names the asking; random.
        nonce: u128,
        /// The time to live that is wished for, in milliseconds.
        ttl_ms: u64,
        /// Given back in the answer: the asker's CLOCK_BOOTTIME before it asked, in milliseconds.
        asked_at: u64,
    },
    /// Takes an incarnation back that has appended nothing, so that no host waits for its end. An
    /// incarnation that has appended something stays. Answered by `Answer::Withdrawn`.
    Withdraw {
        /// Which incarnation.
        host: HostId,
    },
    /// Reads the snapshot and all batches after it, and goes on with those that are appended from
    /// then on. Answered by `Answer::Loaded`, later by `Answer::Batches`.
    Load,
    /// Goes on reading after a batch that was read, from the beginning of the log if `None`. If
    /// it lies there as it was read, answered by `Answer::Batches`, now (perhaps without any)
    /// and for each that is appended from then on; else by `Answer::Rewritten` or
    /// `Answer::Compacted`.
    Follow {
        /// The last batch that was read.
        after: Option<Read>,
    },
    /// Appends a batch. Answered by `Answer::Appended`, `Answer::Fenced` or
    /// `Answer::Overtaken`. At most one is under way; the same one may be asked again.
    Append(Append),
    /// Says that the incarnation lives. Answered by `Answer::Renewed` or `Answer::Fenced`.
    Renew {
        /// Which incarnation.
        host: HostId,
        /// Given back in the answer: the asker's CLOCK_BOOTTIME before it asked, in milliseconds.
        asked_at: u64,
    },
    /// Notes an era in the log, by a batch whose author is [`HostId`] 0, if the engine's last noted
    /// era is still `before`. There is no answer: either the calls that waited for it are carried
    /// out, or `Answer::NewEra` comes again.
    NoteEra {
        /// The era that `Answer::NewEra` named as the last one.
        before: Option<Era>,
        /// The era that begins.
        era: Era,
        /// The encoded `Batch`; its number is that of the era.
        body: Vec<u8>,
    },
    /// Replaces the snapshot, then drops the batches that are in it. Answered by
    /// `Answer::Stored`. One that is older than the stored one changes nothing, nor does one of
    /// a position that the log does not reach: it is of a history that the engine has lost.
    Store(Stored),
}

/// A batch that is to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// By which incarnation.
    pub host: HostId,
    /// Its number: the number of the last one of this incarnation, plus 1.
    pub sequence: u64,
    /// The encoded `Batch`.
    pub body: Vec<u8>,
    /// The incarnation that ends with it, in the same transaction.
    pub ends: Option<Ends>,
}

/// The end of an incarnation, which is also an entry in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Which one.
    pub host: HostId,
    /// What must be so.
    pub evidence: Evidence,
}

/// What permits to end an incarnation. None may have ended already as far as the engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The engine itself knows that it did not renew in time.
    Lapsed,
    /// It has not renewed since its count of renewals was this one.
    Silent {
        /// How many times.
        renewals: u64,
    },
    /// The engine has no record of it, not even of its end: somebody removed it.
    Unknown,
    /// The asker has its identity and takes its place, or is it itself, or comes from another boot
    /// of its machine.
    Own,
}
