//! The engine's answers to a host.

use super::batch::{Placed, Stored};
use super::call::Ends;
use super::identity::{Claimant, EraChange};
use super::outage::Outage;
use super::position::Position;
use canal_core::HostId;

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
    /// The engine is in an era that the log does not name yet. It carries out no other call before
    /// `Call::NoteEra`, so that no host appends as if nothing had been lost.
    NewEra(EraChange),
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
