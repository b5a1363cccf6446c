//! Bypass: a request may pass waiters that wait for its own session.
//!
//! Such a waiter cannot be granted before that session moves. If the request had to let it go
//! first, the two would deadlock on a lock that is free. A session that holds nothing blocks no
//! other session, so it needs no bypass.

use std::collections::BTreeSet;

use super::admit::Admission;
use crate::core::deadlock::reachable::Edges;
use crate::core::index::queue::{self, Rank};
use crate::core::transition::worklist::Transition;
use crate::core::{FrameId, Key, Request, RequestId, Table, WaiterStatus};

impl Table {
    /// Grants one request of a session that both holds and waits. What its frames hold may exempt
    /// it from a conflict, or its predecessors may be waiting for it. Returns whether a request was
    /// granted.
    pub(in crate::core) fn grant_by_bypass(&mut self, transition: &mut Transition<'_>) -> bool {
        let near = self.in_order(self.hold_and_wait_near(&transition.worklist().seen));
        let beyond = self.in_order(self.hold_and_wait_beyond(&transition.worklist().edges));
        let granted = near.iter().any(|request| self.try_waiter(transition, *request))
            || near.iter().chain(&beyond).any(|request| self.try_bypass(transition, *request));
        if !granted {
            transition.worklist().seen.clear();
            transition.worklist().edges.clear();
        }
        granted
    }

    /// The active waiters among some, in the order of service.
    fn in_order(&self, requests: BTreeSet<RequestId>) -> Vec<RequestId> {
        let waiters = requests.into_iter().filter_map(|request| self.waiters.get(&request));
        let mut active: Vec<(Rank, RequestId)> = waiters
            .filter(|waiter| waiter.status == WaiterStatus::Active && !self.parked(waiter))
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
        let asked = waiter.request.clone();
        self.grant_waiter(transition, request, (frame, asked), items, true);
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
        let awaited = edges.iter().copied().filter(|request| self.keeps_others(*request));
        let sessions = self.reachable(awaited, Edges::HoldsAndOrder).sessions;
        let hold_and_wait = sessions.iter().filter(|session| self.hold_and_wait.contains(session));
        hold_and_wait.flat_map(|session| self.waiters_of_session(*session)).collect()
    }

    /// Whether another request can wait for this one, or for a hold of its session.
    fn keeps_others(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let session = self.session(waiter.frame);
        let mut waiters = self.waiters_of_session(session);
        waiters.any(|request| self.goes_before_others(request))
            || self.holds_what_others_want(session)
    }

    /// Whether a waiter is ahead of others that compete with it.
    fn goes_before_others(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let rank = self.rank(waiter);
        let slots = self.classes(&waiter.request).any(|(_, lock, _)| lock.queue.has_behind(rank));
        let mut items = waiter.request.items.iter();
        slots || items.any(|item| self.tree.has_behind(&item.key, item.ask.mode(), rank))
    }

    /// The requests that wait for a key, or for a key above or below it.
    pub(in crate::core) fn waiting_near(&self, key: &Key) -> impl Iterator<Item = RequestId> {
        let near: BTreeSet<Rank> = self.tree.waiting_around(key).collect();
        let rules = self.rules;
        near.into_iter().map(move |rank| queue::request_at(rules, rank.arrival))
    }

    /// Admits a request that fits but has predecessors, if every predecessor waits for the
    /// request's own session, directly or through other sessions.
    pub(in crate::core) fn admission_by_bypass(
        &self,
        asked: &Request,
        lineage: &[FrameId],
        frame: FrameId,
        rank: Rank,
    ) -> Option<Admission> {
        let outermost = lineage.last().copied().unwrap_or(frame);
        let session = self.session(outermost);
        if self.sessions.get(&session).is_none_or(|session| session.holds == 0) {
            return None;
        }
        let Admission::Grant { items, .. } = self.admission_alone(asked, lineage) else {
            return None;
        };
        let predecessors = self.predecessors(asked, lineage, rank);
        if predecessors.is_empty() || !self.all_wait_for(&predecessors, session) {
            return None;
        }
        Some(Admission::Grant { items, bypassed_blockers: true })
    }

    /// Whether each of some requests waits for a session, directly or through other sessions: it is
    /// still blocked after every frame has ended that can end without that session, and the session
    /// is among what blocks it. Requests of the session itself stay where they are. Suspended
    /// requests take no part.
    fn all_wait_for(&self, requests: &BTreeSet<RequestId>, session: FrameId) -> bool {
        let reachable = self.reachable(requests.iter().copied(), Edges::HoldsAndOrder);
        if !reachable.sessions.contains(&session) {
            return false;
        }
        let residual =
            self.subtable(&reachable).reduce(Edges::HoldsAndOrder, Some(session)).residual;
        if !requests.iter().all(|request| residual.waiters.contains_key(request)) {
            return false;
        }
        let mut without = residual.clone();
        for own in residual.waiters_of_session(session) {
            drop(without.remove_waiter(own));
        }
        let left = without.reduce(Edges::HoldsAndOrder, None).residual;
        // A request that is admitted once the session has ended was waiting for it. One that is not
        // may have waited both for the session and for requests that are about to bypass each
        // other.
        let mut doubtful = requests.iter().filter(|request| left.waiters.contains_key(request));
        doubtful.all(|request| residual.leads_to(*request, session))
    }

    /// Whether a request waits for a session, directly or through other sessions. Linear in the
    /// number of waits.
    fn leads_to(&self, request: RequestId, session: FrameId) -> bool {
        let (mut next, mut seen) = (vec![request], BTreeSet::new());
        while let Some(id) = next.pop() {
            let Some(waiter) = self.waiters.get(&id).filter(|_| seen.insert(id)) else { continue };
            let lineage = self.lineage(waiter.frame, None);
            let items = 0..waiter.request.items.len();
            let holds = items.flat_map(|item| self.holds_in_the_way(waiter, item, &lineage));
            let holders: BTreeSet<FrameId> =
                holds.filter_map(|token| Some(self.hold(token)?.frame)).collect();
            let roots = holders.iter().map(|frame| self.session(*frame));
            if roots.chain([self.session(waiter.frame)]).any(|root| root == session) {
                return true;
            }
            next.extend(self.predecessors(&waiter.request, &lineage, self.rank(waiter)));
            for holder in &holders {
                let inside = self.waiters_of_session(self.session(*holder));
                next.extend(inside.filter(|id| self.waits_inside(*id, *holder)));
            }
        }
        false
    }

    fn waits_inside(&self, request: RequestId, outer: FrameId) -> bool {
        let frame = self.waiters.get(&request).map(|waiter| waiter.frame);
        frame.is_some_and(|frame| self.enclosing(frame).any(|frame| frame.state.id == outer))
    }
}
