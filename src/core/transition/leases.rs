//! Decisions about leases: requests, renewals and expiries.

use super::worklist::Transition;
use crate::core::{FrameId, LeaseId, Outcome, Owner, Refusal, Request, Table};

impl Table {
    /// Why a request is invalid as the request of a lease, if it is.
    pub(in crate::core) fn fault_of_lease(&self, asked: &Request) -> Option<Refusal> {
        match (&asked.owner, asked.ttl_ms) {
            (Owner::Process(_), None) => None,
            (Owner::Lease(lease), Some(_)) if asked.parent.is_none() => {
                // A lease has one request in its life. So a lease that holds something never waits,
                // and is never part of a deadlock.
                self.lease(*lease).map(|_| Refusal::Duplicate)
            }
            _ => Some(Refusal::Invalid { item: 0 }),
        }
    }

    pub(in crate::core) fn renew(&mut self, transition: &mut Transition<'_>, lease: LeaseId) {
        let frame = self.lease(lease).and_then(|id| self.frames.get(&id));
        let holding = frame.filter(|frame| !frame.holds.is_empty());
        let renewed = holding.and_then(|frame| Some((frame.state.id, frame.state.lease?.renewals)));
        let outcome = match renewed {
            Some((frame, before)) => Outcome::Renewed { frame, renewal: before + 1 },
            None => Outcome::LeaseGone,
        };
        self.commit(transition, outcome);
    }

    pub(in crate::core) fn expire(
        &mut self,
        transition: &mut Transition<'_>,
        id: FrameId,
        renewal: u64,
    ) {
        let Some(frame) = self.frames.get(&id) else { return };
        if frame.state.lease.is_none_or(|lease| lease.renewals != renewal) {
            return;
        }
        for token in frame.holds.clone() {
            self.release_whole(transition, token);
        }
    }
}
