//! Decisions about leases: requests, renewals and expiries.

use super::worklist::Transition;
use crate::{
    CONFIRMED_TOKEN_MAX, FrameId, HoldState, LeaseId, Outcome, Owner, Refusal, Request, RequestId,
    Table, Token, Wait,
};

impl Table {
    /// Why the request of a lease is invalid, if it is.
    pub(crate) fn fault_of_lease(&self, asked: &Request) -> Option<Refusal> {
        match (&asked.owner, asked.ttl_ms) {
            (Owner::Process(_), None) => None,
            (Owner::Jobserver(_), None) if asked.wait == Wait::No => None,
            (Owner::Lease(lease), Some(_)) if self.may_be_under(asked) => {
                // A lease has one request in its life, and its own session, because it outlives the
                // session that asked for it. So a lease that holds something never waits, and can
                // be part of a deadlock only through the leases that it encloses.
                self.lease(*lease).map(|_| Refusal::Duplicate)
            }
            _ => Some(Refusal::Invalid { item: 0 }),
        }
    }

    /// Whether the request of a lease may belong to the frame that it names: only over nodes, and
    /// only to a lease of the same user that has a firm hold.
    fn may_be_under(&self, asked: &Request) -> bool {
        let Some(parent) = asked.parent else { return true };
        let held_for_certain = |frame| {
            let mut holds = self.holds_in(frame).peekable();
            holds.peek().is_some() && holds.all(|hold| !hold.provisional)
        };
        // A frame that is gone encloses nothing: the request gets its own session.
        let is_lease = self.frames.get(&parent).is_none_or(|frame| {
            let state = &frame.state;
            state.lease.is_some() && state.uid == asked.uid && held_for_certain(parent)
        });
        asked.over_nodes.is_some() && is_lease
    }

    pub(crate) fn confirm_at(
        &mut self,
        transition: &mut Transition<'_>,
        request: RequestId,
        token: Token,
    ) {
        let hold = self.hold_of(request).filter(|hold| hold.asked.over_nodes.is_some());
        let outcome = match hold {
            None => Outcome::NotConfirmed { least: None },
            Some(hold) if self.may_have_token(hold, token) => {
                Outcome::ConfirmedAt { request, was: hold.token, token }
            }
            Some(_) => Outcome::NotConfirmed { least: Some(self.next_token) },
        };
        self.commit(transition, outcome);
    }

    /// Whether a hold may take this token. The node may meanwhile have granted it to another hold,
    /// which may still have it.
    fn may_have_token(&self, hold: &HoldState, token: Token) -> bool {
        token == hold.token
            || token > hold.token
                && token.0 <= CONFIRMED_TOKEN_MAX
                && !self.holds.contains_key(&token)
    }

    pub(crate) fn renew(&mut self, transition: &mut Transition<'_>, lease: LeaseId) {
        let frame = self.lease(lease).and_then(|id| self.frames.get(&id));
        // An unconfirmed part ends with its connection, so a client that renews it by its handle
        // must not rely on it.
        let is_collecting = |hold: &HoldState| hold.provisional && hold.asked.over_nodes.is_some();
        let holding = frame.filter(|frame| {
            let mut holds = self.holds_in(frame.state.id).peekable();
            holds.peek().is_some() && !holds.any(is_collecting)
        });
        let renewed = holding.and_then(|frame| Some((frame.state.id, frame.state.lease?.renewals)));
        let outcome = match renewed {
            Some((frame, before)) => Outcome::Renewed { frame, renewal: before + 1 },
            None => Outcome::LeaseGone,
        };
        self.commit(transition, outcome);
    }

    pub(crate) fn expire(&mut self, transition: &mut Transition<'_>, id: FrameId, renewal: u64) {
        let Some(frame) = self.frames.get(&id) else { return };
        if frame.state.lease.is_none_or(|lease| lease.renewals != renewal) {
            return;
        }
        for token in frame.holds.clone() {
            self.release_whole(transition, token);
        }
    }
}
