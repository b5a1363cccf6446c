//! Snapshots: who makes them, when they are stored, and the comparison of tables by their hashes.
//!
//! Every replica hashes its table after the same batches, and keeps it for a while; the one that has
//! joined first by then stores it and says the hash in the log, and a replica whose own differs goes
//! no further.

use std::collections::VecDeque;

use super::chain::Chain;
use super::encoding::{self, Kept};
use crate::core::{Change, Revision, Rules, Snapshot};
use crate::log::engine::{Hash, Position, Stored};

/// So many hashes are remembered, and claims of others not yet compared.
const REMEMBERED: usize = 8;

/// After so many times the batches that lie between two snapshots, one is stored though there may
/// be hosts that have not read what is in it: daemons may live for less than a TTL.
const OVERDUE: u64 = 4;

/// Two replicas have different tables after the same entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) struct Differs(pub(in crate::host) Revision);

/// A snapshot that nobody is known to have stored.
#[derive(Debug)]
struct Made {
    kept: Kept,
    /// When; by CLOCK_BOOTTIME.
    at_ms: u64,
    /// Stored when the log has so many batches: who is a little behind need not begin anew.
    due: u64,
    /// And when no host lives that has not read it, or the log has so many.
    overdue: u64,
}

impl Made {
    fn position(&self) -> Position {
        self.kept.chain.link().position
    }

    /// `ttl_ms` is the longest of all hosts: who was away for so long has lost what it held anyway.
    fn is_due(&self, batches: u64, now_ms: u64, ttl_ms: u64) -> bool {
        let read_by_all = now_ms.saturating_sub(self.at_ms) >= ttl_ms;
        batches >= self.overdue || batches >= self.due && read_by_all
    }
}

/// What is known of snapshots.
#[derive(Debug, Default)]
pub(in crate::host) struct SnapshotKeeper {
    /// For each [`super::Event::SnapshotWanted`] that is not answered, the state at its place, if it
    /// still counts.
    wanted: VecDeque<Option<Chain>>,
    known: VecDeque<(Revision, Hash)>,
    claims: VecDeque<(Revision, String)>,
    /// By every replica: nobody knows who will be there when it is due.
    made: Option<Made>,
    storing: bool,
}

impl SnapshotKeeper {
    /// Whether a snapshot is wanted after this batch.
    pub(in crate::host) fn is_wanted(&mut self, chain: &Chain, every: u64) -> bool {
        let wanted = chain.batches().is_multiple_of(every.max(1));
        if wanted {
            self.wanted.push_back(Some(chain.clone()));
        }
        wanted
    }

    /// History begins anew: what was known of tables is void.
    pub(in crate::host) fn forget(&mut self) {
        let wanted = self.wanted.iter().map(|_| None).collect();
        *self = Self { wanted, ..Self::default() };
    }

    /// Takes in the table that was wanted first.
    pub(in crate::host) fn take(
        &mut self,
        table: &Snapshot,
        now_ms: u64,
        every: u64,
    ) -> Result<(), Differs> {
        let Some(chain) = self.wanted.pop_front().flatten() else { return Ok(()) };
        if table.revision != chain.revision() {
            return Ok(());
        }
        let hash = encoding::table_hash(table);
        self.know(table.revision, hash)?;
        // If one waits to be stored, that is done first.
        if self.made.is_none() {
            let (due, overdue) = (chain.batches() + every / 4, chain.batches() + every * OVERDUE);
            let kept = Kept { chain, hash, table: table.clone() };
            self.made = Some(Made { kept, at_ms: now_ms, due, overdue });
            self.storing = false;
        }
        Ok(())
    }

    /// A table with this hash was there at a revision, ours or that of a snapshot.
    pub(in crate::host) fn know(&mut self, revision: Revision, hash: Hash) -> Result<(), Differs> {
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

    /// Another replica, or we, say in the log what the table was at a revision.
    pub(in crate::host) fn claimed(
        &mut self,
        revision: Revision,
        table: &str,
    ) -> Result<(), Differs> {
        let other = |(at, hash): &(Revision, Hash)| *at == revision && hash.to_string() != table;
        if self.known.iter().any(other) {
            return Err(Differs(revision));
        }
        push_bounded(&mut self.claims, (revision, table.to_owned()));
        // It is stored.
        self.made.take_if(|made| made.kept.table.revision <= revision);
        Ok(())
    }

    /// The snapshot that is to be stored when the log is as here.
    pub(in crate::host) fn due(
        &mut self,
        rules: Rules,
        chain: &Chain,
        now_ms: u64,
        ttl_ms: u64,
    ) -> Option<Stored> {
        let due = |made: &&Made| made.is_due(chain.batches(), now_ms, ttl_ms) && !self.storing;
        let made = self.made.as_ref().filter(due)?;
        self.storing = true;
        Some(Stored { position: made.position(), body: encoding::write_kept(rules, &made.kept) })
    }

    /// The engine was away: it may not have been stored.
    pub(in crate::host) fn ask_again(&mut self) {
        self.storing = false;
    }

    /// The engine has a snapshot of this position: what to say of it in the log, if it is ours.
    pub(in crate::host) fn stored(&mut self, position: Position) -> Option<Change> {
        let made = self.made.take_if(|made| made.position() <= position)?;
        self.storing = false;
        let ours = made.position() == position;
        let Kept { hash, table, .. } = made.kept;
        ours.then(|| Change::Checkpoint { revision: table.revision, table: hash.to_string() })
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == REMEMBERED {
        queue.pop_front();
    }
    queue.push_back(item);
}
