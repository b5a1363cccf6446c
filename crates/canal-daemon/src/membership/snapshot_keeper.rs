//! Snapshots: when replicas make and store them, and how they compare their tables.
//!
//! Every replica copies its table after the same batches and hashes the copy. The member that
//! joined first stores its copy when it is due and appends the hash to the log. A replica whose own
//! hash differs stops.
//!
//! If only the oldest member copied its table, a series of short-lived daemons would never finish a
//! snapshot.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::batch_chain::Chain;
use canal_core::{Change, Revision, Snapshot};
use canal_log::engine::encoding::{Unreadable, json, read, write};
use canal_log::engine::{Hash, Position, Stored};

/// A table, and the state that a reader needs to continue from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) chain: Chain,
    /// The hash of `table`.
    pub(super) hash: Hash,
    pub(super) table: Snapshot,
}

pub(super) fn read_kept(body: &[u8]) -> Result<Kept, Unreadable> {
    let kept: Kept = read("snapshot", body)?;
    if Hash::of(&json(&kept.table)) != kept.hash {
        return Err(Unreadable::Damaged("its table does not match its hash".to_owned()));
    }
    if kept.table.globals.revision != kept.chain.revision {
        return Err(Unreadable::Damaged("its table has another revision".to_owned()));
    }
    Ok(kept)
}

/// A snapshot is made after this many batches, by default.
pub(super) const BATCHES_PER_SNAPSHOT: u64 = 4096;

/// The number of hashes to remember, and of claims of other replicas that are not yet compared.
const REMEMBERED: usize = 8;

/// A snapshot is stored after this many snapshot intervals even if some hosts may not have read
/// what it contains: daemons may live for less than a TTL.
const OVERDUE: u64 = 4;

/// Two replicas have different tables after the same entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Differs(pub(super) Revision);

/// A snapshot that no replica is known to have stored.
#[derive(Debug)]
struct Made {
    kept: Kept,
    /// When it was made, by CLOCK_BOOTTIME.
    at_ms: u64,
    /// It is not stored before the log has this many batches: a host that lags a little can
    /// continue without it.
    due: u64,
    /// From this many batches on, it is stored even if a live host has not read what it contains.
    overdue: u64,
}

impl Made {
    fn position(&self) -> Position {
        self.kept.chain.link.position
    }
}

/// The snapshots that are made and claimed.
#[derive(Debug, Default)]
pub(super) struct SnapshotKeeper {
    known: VecDeque<(Revision, Hash)>,
    claims: VecDeque<(Revision, String)>,
    /// Every replica makes one, since any of them may be gone when it is due.
    made: Option<Made>,
    pub(super) storing: bool,
}

impl SnapshotKeeper {
    /// Takes the table after the last batch of this chain.
    pub(super) fn take(
        &mut self,
        chain: Chain,
        table: &Snapshot,
        now_ms: u64,
        every: u64,
    ) -> Result<(), Differs> {
        if table.globals.revision != chain.revision {
            return Ok(());
        }
        let hash = Hash::of(&json(table));
        self.know(table.globals.revision, hash)?;
        // An earlier snapshot that waits to be stored comes first.
        if self.made.is_none() {
            let (due, overdue) = (chain.batches + every / 4, chain.batches + every * OVERDUE);
            let kept = Kept { chain, hash, table: table.clone() };
            self.made = Some(Made { kept, at_ms: now_ms, due, overdue });
            self.storing = false;
        }
        Ok(())
    }

    /// Records the hash of the table at a revision: this host's own, or that of a snapshot.
    pub(super) fn know(&mut self, revision: Revision, hash: Hash) -> Result<(), Differs> {
        let name = hash.to_string();
        let known = self.known.iter().find(|(at, _)| *at == revision);
        if known.is_some_and(|(_, known)| *known != hash)
            || self.claims.iter().any(|(at, claim)| *at == revision && *claim != name)
        {
            return Err(Differs(revision));
        }
        if known.is_none() {
            push_bounded(&mut self.known, (revision, hash));
        }
        Ok(())
    }

    /// Records the hash that a replica claims in the log for the table at a revision.
    pub(super) fn claimed(&mut self, revision: Revision, table: &str) -> Result<(), Differs> {
        let other = |(at, hash): &(Revision, Hash)| *at == revision && hash.to_string() != table;
        if self.known.iter().any(other) {
            return Err(Differs(revision));
        }
        push_bounded(&mut self.claims, (revision, table.to_owned()));
        // It is already stored.
        self.made.take_if(|made| made.kept.table.globals.revision <= revision);
        Ok(())
    }

    /// The snapshot to store now, if one is due. `ttl_ms` is the longest TTL of all hosts. A host
    /// that was away for longer has lost its holds anyway.
    pub(super) fn due(&mut self, chain: &Chain, now_ms: u64, ttl_ms: u64) -> Option<Stored> {
        let made = self.made.as_ref().filter(|_| !self.storing)?;
        let read_by_all = now_ms.saturating_sub(made.at_ms) >= ttl_ms;
        if chain.batches < if read_by_all { made.due } else { made.overdue } {
            return None;
        }
        self.storing = true;
        Some(Stored { position: made.position(), body: write("snapshot", &made.kept) })
    }

    /// Records that the engine has stored a snapshot at this position. Returns the change to append
    /// to the log if the snapshot is this host's.
    pub(super) fn stored(&mut self, position: Position) -> Option<Change> {
        let made = self.made.take_if(|made| made.position() <= position)?;
        self.storing = false;
        let ours = made.position() == position;
        let (revision, table) = (made.kept.table.globals.revision, made.kept.hash.to_string());
        ours.then_some(Change::Checkpoint { revision, table })
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == REMEMBERED {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_01_a_snapshot_of_another_version_is_refused_by_its_first_line() {
        let body = b"canal snapshot 2 2\nwhat nobody knows yet";
        assert!(matches!(read_kept(body), Err(Unreadable::Version { .. })));
    }
}
