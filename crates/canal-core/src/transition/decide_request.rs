//! Decides a new request: granted, refused or queued.

use std::collections::BTreeSet;

use super::commit::Transition;
use crate::admission::admit::Obstacle;
use crate::state::table::Contender;
use crate::{
    Ask, Granted, Item, Outcome, Owner, Refusal, Request, RequestId, Table, View, Wait, WaiterState,
};

impl Transition<'_> {
    pub(crate) fn decide(&mut self, asked: &Request) {
        let request = RequestId(self.table.globals.revision.0);
        let mut superseded = self.table.superseded_waiters(asked);
        if !superseded.is_empty()
            && !is_refused(&self.table.verdict_without(&superseded, asked, request))
        {
            self.supersede(&mut superseded, request);
        }
        let mut outcome = self.table.verdict(asked, request);
        let spares = self.table.spares_before_newcomer(asked, &outcome);
        if !spares.is_empty() {
            spares.iter().for_each(|token| self.release_whole(*token));
            outcome = self.table.verdict(asked, request);
        }
        let is_granted = matches!(outcome, Outcome::Granted(_));
        let is_refused = is_refused(&outcome);
        self.commit(outcome);
        if !is_refused {
            self.supersede(&mut superseded, request);
        }
        if is_granted {
            self.raise_barriers();
        }
    }

    /// Refuses waiting requests in favour of a new one.
    fn supersede(&mut self, superseded: &mut Vec<RequestId>, by: RequestId) {
        for request in superseded.drain(..) {
            let why = Refusal::Superseded { by };
            self.commit(Outcome::Refused { request, why });
        }
    }
}

fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused { .. })
}

impl Table {
    /// The decision about a request if those that it supersedes were gone. If that is a refusal, it
    /// may be granted all the same: an older request can block one that is ahead of the new one,
    /// which then bypasses both.
    fn verdict_without(&mut self, gone: &[RequestId], asked: &Request, id: RequestId) -> Outcome {
        // Neither call fails: they wait, and their frames are still there.
        let aside: Vec<WaiterState> =
            gone.iter().filter_map(|it| self.remove_waiter(*it).ok()).collect();
        let verdict = self.verdict_alone(asked, id);
        aside.into_iter().for_each(|waiter| drop(self.add_waiter(waiter)));
        verdict
    }

    /// The decision about a request if it were the next entry. Changes nothing.
    pub fn verdict_on(&self, asked: &Request) -> Outcome {
        let request = RequestId(self.globals.revision.0 + 1);
        let superseded = self.superseded_waiters(asked);
        if !superseded.is_empty() {
            let verdict = self.clone().verdict_without(&superseded, asked, request);
            if !is_refused(&verdict) {
                return verdict;
            }
        }
        self.verdict_alone(asked, request)
    }

    /// The decision about a request if it were the next entry and superseded no other request.
    fn verdict_alone(&self, asked: &Request, request: RequestId) -> Outcome {
        let outcome = self.verdict(asked, request);
        let spares = self.spares_before_newcomer(asked, &outcome);
        if spares.is_empty() {
            return outcome;
        }
        let mut without = self.clone();
        // Cannot fail: the holds were just found.
        spares.iter().for_each(|token| drop(without.end_hold(*token)));
        without.verdict(asked, request)
    }

    /// The decision about a new request.
    fn verdict(&self, asked: &Request, request: RequestId) -> Outcome {
        let fault = self.fault(asked);
        let fault = fault.or_else(|| self.globals.recovery.as_ref().map(|_| Refusal::Recovering));
        if let Some(why) = fault.or_else(|| self.fault_of_supersede(asked)) {
            return Outcome::Refused { request, why };
        }
        let newcomer = self.newcomer(self.sized(asked), request);
        let (frame, token) = (newcomer.frame, self.globals.next_token);
        let granted = |items, bypassed_blockers| {
            Outcome::Granted(Granted { request, frame, token, items, bypassed_blockers })
        };
        let item = match self.admission(&newcomer) {
            Ok(items) => return granted(items, false),
            Err((item, Obstacle::Conflict)) => item,
            Err((item, Obstacle::Behind)) => match self.admit_by_bypass(&newcomer) {
                Some(items) => return granted(items, true),
                None => item,
            },
        };
        match self.refusal(&newcomer, item) {
            Some(why) => Outcome::Refused { request, why },
            None => Outcome::Queued { request, frame },
        }
    }

    /// Why a request that cannot be granted now is refused instead of queued. `item` is the first
    /// item that is not free.
    fn refusal(&self, newcomer: &Contender<'_>, item: usize) -> Option<Refusal> {
        let may_wait = newcomer.asked.wait != Wait::No;
        let why = match self.misfit(newcomer) {
            Some(Refusal::Paused { .. }) if may_wait => None,
            // If the request is too large, waiting would not help. `Paused` comes first: the size
            // of a paused key may be about to change.
            Some(misfit) => Some(misfit),
            None if !may_wait => Some(Refusal::Full { item }),
            None => self.own_deadlock(newcomer).map(|item| Refusal::OwnDeadlock { item }),
        };
        why.or_else(|| self.too_many_wait(&newcomer.asked))
    }

    /// The refusal if one of its keys already has as many waiters as the request accepts, including
    /// stopped and parked ones.
    fn too_many_wait(&self, asked: &Request) -> Option<Refusal> {
        let most = asked.max_waiting?;
        let mut waiting = asked.items.iter().map(|item| self.waiting_for(&item.key) as u64);
        let item = waiting.clone().position(|waiting| waiting >= most)?;
        Some(Refusal::MaxWaiting { item, waiting: waiting.nth(item)? })
    }

    /// Why a request is invalid regardless of holds and waiters, if it is.
    fn fault(&self, asked: &Request) -> Option<Refusal> {
        if self.tagged(asked.tag).is_some() {
            return Some(Refusal::Duplicate);
        }
        if asked.items.is_empty() {
            return Some(Refusal::Invalid { item: 0 });
        }
        let fault = self.fault_of_lease(asked).or_else(|| self.fault_over_nodes(asked));
        if fault.is_some() {
            return fault;
        }
        let mut keys = BTreeSet::new();
        asked.items.iter().enumerate().find_map(|(item, Item { key, ask })| {
            if asked.items.len() > 1 && !keys.insert(key) {
                return Some(Refusal::Invalid { item });
            }
            let Ask::Counted { count, view: stated, .. } = *ask else { return None };
            if count == 0 || matches!(stated, Some(View::Buckets { per: 0, .. })) {
                return Some(Refusal::Invalid { item });
            }
            let in_use = self.tree.lock(key).effective_kind()?;
            (stated?.kind() != in_use).then_some(Refusal::Kind { item, in_use })
        })
    }

    /// Why the request of a lease is invalid, if it is.
    fn fault_of_lease(&self, asked: &Request) -> Option<Refusal> {
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
}
