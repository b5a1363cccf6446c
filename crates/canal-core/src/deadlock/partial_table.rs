//! A partial table: a part of a table that only shrinks. Deadlocks that span several tables are
//! found in partial tables of all of them.
//!
//! Invariant: a request that can be granted in a partial table can be granted in every partial
//! table that it shrinks to, so the order in which it shrinks does not matter.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use super::graph_reduction::{Edges, must};
use crate::{
    Above, Command, Diverged, FrameId, LeaseId, Owner, Request, RequestId, RunId, Snapshot, Table,
    Tag, Token,
};

/// A part of a table that only shrinks: requests and holds are removed from it.
#[derive(Clone, Debug)]
pub struct PartialTable(Table);

impl Table {
    /// The sessions of some frames, and the part of the table that their requests can wait for:
    /// frames, holds, waiters and sizes. It omits requests that cannot be granted for reasons other
    /// than holds and order (they are stopped, or their key is paused). It ignores a frame that
    /// does not exist.
    ///
    /// It shows which keys are held and wanted, and by which users. It omits what only the user of
    /// a request may know: commands, notes, tags and owners.
    pub fn partial_table(&self, near: impl IntoIterator<Item = FrameId>) -> Snapshot {
        let near = near.into_iter().filter(|frame| self.frame(*frame).is_some());
        let sessions: BTreeSet<FrameId> = near.map(|frame| self.session(frame)).collect();
        let waiting = sessions.iter().flat_map(|session| self.waiters_of_session(*session));
        let mut reachable = self.reachable(waiting.collect(), Edges::HoldsAndOrder);
        // A session that holds anything may bypass waiters that wait for it.
        reachable.add_sessions(self, &sessions);
        let mut partial_table = self.subtable(&reachable).snapshot();
        for frame in &mut partial_table.frames {
            frame.owner = nobody(frame.id);
        }
        for hold in &mut partial_table.holds {
            hold.asked = without_secrets(&hold.asked, hold.request, hold.frame);
        }
        for waiter in &mut partial_table.waiters {
            waiter.request = without_secrets(&waiter.request, waiter.id, waiter.frame);
        }
        partial_table
    }

    /// The frames of requests that belong to one of these runs over nodes, that their clients
    /// declare to be inside one of them, or that are inside a frame of any node.
    pub fn frames_near(&self, runs: &BTreeSet<RunId>) -> BTreeSet<FrameId> {
        let is_near = |asked: &Request| {
            let part_of = asked.over_nodes.as_deref().is_some_and(|over| runs.contains(&over.run));
            part_of
                || asked.above.as_deref().is_some_and(|above| match above {
                    Above::Run(run) => runs.contains(run),
                    Above::Frame(..) => true,
                })
        };
        let held = self.holds().map(|hold| (&*hold.asked, hold.frame));
        let waiting = self.waiters().map(|waiter| (&*waiter.request, waiter.frame));
        let near = held.chain(waiting).filter(|(asked, _)| is_near(asked));
        near.map(|(_, frame)| frame).collect()
    }
}

/// An owner that replaces the real owner of a frame.
fn nobody(frame: FrameId) -> Owner {
    Owner::Lease(LeaseId(frame.0.into()))
}

/// A copy of a request without the data that only its user may know.
fn without_secrets(asked: &Request, id: RequestId, frame: FrameId) -> Arc<Request> {
    let (tag, owner, command) = (Tag(id.0.into()), nobody(frame), Command::default());
    let (note, asker) = (None, None);
    Arc::new(Request { tag, owner, command, note, asker, ..asked.clone() })
}

impl PartialTable {
    /// The partial table that a snapshot describes.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn of(snapshot: &Snapshot) -> Result<Self, Diverged> {
        Table::restore(snapshot).map(Self)
    }

    /// Whether a request could be granted now, given the waiters that precede it.
    pub fn can_be_granted(&self, request: RequestId) -> bool {
        let waiter = self.waiter(request);
        waiter.is_some_and(|waiter| self.admission(&self.contender(waiter)).is_ok())
    }

    /// Whether a request could be granted ahead of its turn, because each waiter that precedes it
    /// waits for the request's own session, as far as this table knows. Expensive.
    pub fn can_bypass(&self, request: RequestId) -> bool {
        let waiter = self.waiter(request);
        waiter.is_some_and(|waiter| self.admit_by_bypass(&self.contender(waiter)).is_some())
    }

    /// Removes a waiting request. Ignores a request that does not wait.
    pub fn remove_request(&mut self, request: RequestId) {
        if self.waiter(request).is_some() {
            must(self.0.remove_waiter(request).map(drop));
        }
    }

    /// Removes all holds of a frame, but not those of the frames inside it. Returns whether there
    /// were any.
    pub fn end_holds(&mut self, frame: FrameId) -> bool {
        let held: Vec<Token> = self.holds_in(frame).map(|hold| hold.token).collect();
        held.iter().for_each(|token| must(self.0.end_hold(*token)));
        !held.is_empty()
    }
}

/// A partial table reads like a table.
impl Deref for PartialTable {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.0
    }
}
