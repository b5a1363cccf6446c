//! Leases: what a request for one may say, what a renewal finds, and what an expiry ends.

use super::worklist::Turn;
use crate::core::{FrameId, LeaseId, Outcome, Owner, Refusal, Request, Table};

impl Table {
    /// What is wrong with a request as that of a lease.
    pub(in crate::core) fn fault_of_lease(&self, asked: &Request) -> Option<Refusal> {
        match (&asked.owner, asked.ttl_ms) {
            (Owner::Process(_), None) => None,
            (Owner::Lease(lease), Some(_)) if asked.parent.is_none() => {
                // One request in its life: so a lease that holds something never waits, and none
                // is ever in a deadlock.
                self.lease(*lease).map(|_| Refusal::Duplicate)
            }
            _ => Some(Refusal::Invalid { item: 0 }),
        }
    }

    pub(in crate::core) fn renew(&mut self, turn: &mut Turn<'_>, lease: LeaseId) {
        let frame = self.lease(lease).and_then(|id| self.frames.get(&id));
        let holding = frame.filter(|frame| !frame.holds.is_empty());
        let renewed = holding.and_then(|frame| Some((frame.state.id, frame.state.lease?.renewals)));
        let outcome = match renewed {
            Some((frame, before)) => Outcome::Renewed { frame, renewal: before + 1 },
            None => Outcome::LeaseGone,
        };
        self.decide(turn, outcome);
    }

    pub(in crate::core) fn expire(&mut self, turn: &mut Turn<'_>, id: FrameId, renewal: u64) {
        let Some(frame) = self.frames.get(&id) else { return };
        if frame.state.lease.is_none_or(|lease| lease.renewals != renewal) {
            return;
        }
        for token in frame.holds.clone() {
            self.release_whole(turn, token);
        }
    }
}
