//! What the engine answers to a host.

use super::batch::{Placed, Stored};
use super::call::Ends;
use super::identity::{Claimant, Era};
use super::outage::Outage;
use super::position::Position;
use crate::core::HostId;

/// What the engine answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To `Register`.
    Registered {
        /// The new incarnation; greater than all before it.
        host: HostId,
        /// The time to live that the engine grants, in milliseconds.
        ttl_ms: u64,
        /// As asked.
        asked_at: u64,
        /// Which history the log has; another one after the log was made anew.
        epoch: u128,
        /// Incarnations of the same label that have not ended.
        others: Vec<Claimant>,
    },
    /// To `Withdraw`: it is gone, or has appended something.
    Withdrawn {
        /// Which incarnation.
        host: HostId,
    },
    /// To `Load`.
    Loaded {
        /// The snapshot, if there is one.
        snapshot: Option<Stored>,
        /// All batches after it that there are now.
        batches: Vec<Placed>,
    },
    /// To `Load` and `Follow`: the next batches, in order, without a gap to those before.
    Batches(Vec<Placed>),
    /// What was read is not in the log as it was read, or not any more: history was rewritten.
    Rewritten,
    /// What comes after what was read has been replaced by a snapshot: load anew.
    Compacted,
    /// The batch is in the log. Its echo among the batches may come before or after this.
    Appended {
        /// Whose.
        host: HostId,
        /// Its number.
        sequence: u64,
        /// Where it lies.
        position: Position,
    },
    /// The evidence for the end of an incarnation does not hold; nothing was appended.
    Overtaken {
        /// The author of the batch.
        host: HostId,
        /// The number of the batch, which another one can have by now.
        sequence: u64,
        /// The end that was to come with it.
        ends: Option<Ends>,
    },
    /// The incarnation has ended, or another process appends in its name. Nothing was appended.
    Fenced {
        /// Which incarnation asked.
        host: HostId,
        /// The reason, for people.
        why: String,
    },
    /// To `Renew`.
    Renewed {
        /// As asked.
        asked_at: u64,
        /// The time to live from `asked_at`, in milliseconds.
        ttl_ms: u64,
        /// The position of the last batch.
        head: Position,
        /// All incarnations that have not ended.
        hosts: Vec<Alive>,
    },
    /// The engine is in an era that the log does not name yet. No other call is carried out before
    /// `Call::NoteEra`: nothing may be appended as if nothing had been lost.
    NewEra {
        /// The last era that the log names.
        before: Option<Era>,
        /// The one that begins, with the next number.
        era: Era,
        /// Whether acknowledged batches may be missing. A database that recovers from a crash has
        /// them all; a promoted standby or a restored backup may not.
        may_lack: bool,
    },
    /// To `Store`.
    Stored {
        /// The position of the snapshot that is stored now.
        position: Position,
    },
    /// The engine is of no use for now. What was called may have been done or not. Said again if
    /// the reason becomes another one.
    Away(Outage),
    /// The engine takes nothing in for this reason, although it can be reached: what was asked waits.
    /// `None`: it takes in again what it is given.
    Full(Option<Outage>),
    /// The engine can be reached again; whatever has no answer is to be called again.
    Back,
}

/// An incarnation that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Which one.
    pub host: HostId,
    /// Its time to live, in milliseconds.
    pub ttl_ms: u64,
    /// How it shows that it lives.
    pub sign: Sign,
}

/// How an incarnation shows that it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The engine watches over it and says that it lives.
    Watched,
    /// The engine watches over it and says that it did not renew in time.
    Lapsed,
    /// Its count of renewals; observers judge by their own clock.
    Renewals(u64),
}
