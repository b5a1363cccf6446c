//! The bypass pass: grants to waiters of hold-and-wait sessions what other waiters may not have.

use std::collections::BTreeSet;

use super::worklist::Transition;
use crate::core::admission::admit::Admission;
use crate::core::deadlock::reachable::Edges;
use crate::core::index::grant_order::Rank;
use crate::core::{Key, RequestId, Table, WaiterStatus};

impl Table {
    /// Grants one request of a session that both holds and waits. What its frames hold may exempt
    /// it from a conflict, or its predecessors may be waiting for it. Returns whether a request was
    /// granted.
    pub(in crate::core) fn grant_by_bypass(&mut self, transition: &mut Transition<'_>) -> bool {
        let near = self.in_order(self.hold_and_wait_near(&transition.worklist().changed_keys));
        let beyond = self.in_order(self.hold_and_wait_beyond(&transition.worklist().new_waits));
        let granted = near.iter().any(|request| self.try_waiter(transition, *request))
            || near.iter().chain(&beyond).any(|request| self.try_bypass(transition, *request));
        if !granted {
            transition.worklist().changed_keys.clear();
            transition.worklist().new_waits.clear();
        }
        granted
    }

    /// The active waiters among some, in the order of service.
    pub(in crate::core) fn in_order(&self, requests: BTreeSet<RequestId>) -> Vec<RequestId> {
        let waiters = requests.into_iter().filter_map(|request| self.waiters.get(&request));
        let mut active: Vec<(Rank, RequestId)> = waiters
            .filter(|waiter| waiter.status == WaiterStatus::Active && !self.is_inactive(waiter))
            .map(|waiter| (self.rank(waiter), waiter.id))
            .collect();
        active.sort_unstable();
        active.into_iter().map(|(_, request)| request).collect()
    }

    fn try_bypass(&mut self, transition: &mut Transition<'_>, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let lineage = self.lineage(waiter.frame, None);
        let (frame, rank) = (waiter.frame, self.rank(waiter));
        let admission = self.admission_by_bypass(&waiter.request, &lineage, frame, rank);
        let Some(Admission::Grant { items, .. }) = admission else { return false };
        self.grant_waiter(transition, request, frame, items, true);
        true
    }

    /// Requests of hold-and-wait sessions for one of these keys, or for a key above or below it.
    fn hold_and_wait_near(&self, keys: &BTreeSet<Key>) -> BTreeSet<RequestId> {
        if self.hold_and_wait.is_empty() {
            return BTreeSet::new();
        }
        let mut near: BTreeSet<RequestId> =
            keys.iter().flat_map(|key| self.waiting_near(key)).collect();
        near.retain(|id| {
            let frame = self.waiters.get(id).map(|waiter| waiter.frame);
            frame.is_some_and(|frame| self.hold_and_wait.contains(&self.session(frame)))
        });
        near
    }

    /// Requests of the hold-and-wait sessions that can be reached from new waits. Only for these
    /// can a predecessor have begun to wait for the requester's session.
    fn hold_and_wait_beyond(&self, edges: &BTreeSet<RequestId>) -> BTreeSet<RequestId> {
        if self.hold_and_wait.is_empty() {
            return BTreeSet::new();
        }
        let awaited = edges.iter().copied().filter(|request| self.blocks_others(*request));
        let sessions = self.reachable(awaited, Edges::HoldsAndOrder).sessions;
        let hold_and_wait = sessions.iter().filter(|session| self.hold_and_wait.contains(session));
        hold_and_wait.flat_map(|session| self.waiters_of_session(*session)).collect()
    }

    /// Whether another request can wait for this one, or for a hold of its session.
    fn blocks_others(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let session = self.session(waiter.frame);
        let mut waiters = self.waiters_of_session(session);
        waiters.any(|request| self.precedes_others(request)) || self.holds_what_others_want(session)
    }

    /// Whether a waiter is ahead of others that compete with it.
    fn precedes_others(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let rank = self.rank(waiter);
        let slots = self.classes(&waiter.request).any(|(_, lock, _)| lock.queue.has_behind(rank));
        let mut items = waiter.request.items.iter();
        slots || items.any(|item| self.tree.has_behind(&item.key, item.ask.mode(), rank))
    }
}
