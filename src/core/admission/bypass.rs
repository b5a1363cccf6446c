//! Passing waiters that wait for the very session that asks.
//!
//! Such a waiter cannot be granted before that session moves, so to let it bar would make a
//! deadlock on a lock that is free. Sessions that hold nothing keep nobody waiting and need none
//! of this.

use std::collections::BTreeSet;

use super::admit::Verdict;
use crate::core::deadlock::reachable::Edges;
use crate::core::index::queue::{self, Rank};
use crate::core::transition::worklist::Turn;
use crate::core::{FrameId, Key, Request, RequestId, Table, WaiterStatus};

impl Table {
    /// Grants one request of a session that holds something: what its frames hold may exempt it
    /// from what keeps all others, or those who bar it may wait for it. Whether it did.
    pub(in crate::core) fn settle_entangled(&mut self, turn: &mut Turn<'_>) -> bool {
        let near = self.in_order(self.entangled_near(&turn.concerned().seen));
        let beyond = self.in_order(self.entangled_beyond(&turn.concerned().edges));
        let granted = near.iter().any(|request| self.try_waiter(turn, *request))
            || near.iter().chain(&beyond).any(|request| self.try_past_own(turn, *request));
        if !granted {
            turn.concerned().seen.clear();
            turn.concerned().edges.clear();
        }
        granted
    }

    /// Those of some waiters that can be granted, in the order in which they are served.
    fn in_order(&self, requests: BTreeSet<RequestId>) -> Vec<RequestId> {
        let waiters = requests.into_iter().filter_map(|request| self.waiters.get(&request));
        let mut active: Vec<(Rank, RequestId)> = waiters
            .filter(|waiter| waiter.status == WaiterStatus::Active && !self.parked(waiter))
            .map(|waiter| (self.rank(waiter), waiter.id))
            .collect();
        active.sort_unstable();
        active.into_iter().map(|(_, request)| request).collect()
    }

    fn try_past_own(&mut self, turn: &mut Turn<'_>, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let kin = self.kin(waiter.frame, None);
        let (frame, rank) = (waiter.frame, self.rank(waiter));
        let verdict = self.verdict_past_own(&waiter.request, &kin, frame, rank);
        let Some(Verdict::Grant { items, .. }) = verdict else { return false };
        let asked = waiter.request.clone();
        self.grant_waiter(turn, request, (frame, asked), items, true);
        true
    }

    /// Those who want one of these keys, or one above or below them.
    fn entangled_near(&self, keys: &BTreeSet<Key>) -> BTreeSet<RequestId> {
        if self.entangled.is_empty() {
            return BTreeSet::new();
        }
        let mut near: BTreeSet<RequestId> =
            keys.iter().flat_map(|key| self.waiting_near(key)).collect();
        near.retain(|id| {
            let frame = self.waiters.get(id).map(|waiter| waiter.frame);
            frame.is_some_and(|frame| self.entangled.contains(&self.session(frame)))
        });
        near
    }

    /// Those whose sessions can be waited for from where waits were added: only for these can those
    /// who bar them have begun to wait.
    fn entangled_beyond(&self, edges: &BTreeSet<RequestId>) -> BTreeSet<RequestId> {
        if self.entangled.is_empty() {
            return BTreeSet::new();
        }
        let awaited = edges.iter().copied().filter(|request| self.keeps_others(*request));
        let sessions = self.reach(awaited, Edges::HoldsAndBars).sessions;
        let entangled = sessions.iter().filter(|session| self.entangled.contains(session));
        entangled.flat_map(|session| self.waiters_of_session(*session)).collect()
    }

    /// Whether anybody can wait for a request, or for its session.
    fn keeps_others(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let session = self.session(waiter.frame);
        let mut waiters = self.waiters_of_session(session);
        waiters.any(|request| self.goes_before_others(request))
            || self.has_what_others_want(session)
    }

    /// Whether a waiter stands before others that compete with it.
    fn goes_before_others(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let rank = self.rank(waiter);
        let slots = self.classes(&waiter.request).any(|(_, lock, _)| lock.queue.has_behind(rank));
        let mut items = waiter.request.items.iter();
        slots || items.any(|item| self.tree.has_behind(&item.key, item.ask.mode(), rank))
    }

    /// Those who wait for a key, or for one above or below it.
    pub(in crate::core) fn waiting_near(&self, key: &Key) -> impl Iterator<Item = RequestId> {
        let near: BTreeSet<Rank> = self.tree.waiting_around(key).collect();
        let rules = self.rules;
        near.into_iter().map(move |rank| queue::request_at(rules, rank.place))
    }

    /// The verdict over a request that fits and is barred, if those who bar it all wait for its
    /// own session, directly or through others.
    pub(in crate::core) fn verdict_past_own(
        &self,
        asked: &Request,
        kin: &[FrameId],
        frame: FrameId,
        rank: Rank,
    ) -> Option<Verdict> {
        let outermost = kin.last().copied().unwrap_or(frame);
        let session = self.session(outermost);
        if self.sessions.get(&session).is_none_or(|session| session.holds == 0) {
            return None;
        }
        let Verdict::Grant { items, .. } = self.verdict_alone(asked, kin) else { return None };
        let barring = self.barring(asked, kin, rank);
        if barring.is_empty() || !self.all_wait_for(&barring, session) {
            return None;
        }
        Some(Verdict::Grant { items, past_own: true })
    }

    /// Whether each of some requests waits for a session, directly or through others: it stays when
    /// everybody has ended who can without that session moving, and leads to it. The requests of
    /// the session itself stay where they are; who is stopped takes no part.
    fn all_wait_for(&self, requests: &BTreeSet<RequestId>, session: FrameId) -> bool {
        let reach = self.reach(requests.iter().copied(), Edges::HoldsAndBars);
        if !reach.sessions.contains(&session) {
            return false;
        }
        let rest = self.part(&reach).think(Edges::HoldsAndBars, Some(session)).rest;
        if !requests.iter().all(|request| rest.waiters.contains_key(request)) {
            return false;
        }
        let mut without = rest.clone();
        for own in rest.waiters_of_session(session) {
            drop(without.remove_waiter(own));
        }
        let left = without.think(Edges::HoldsAndBars, None).rest;
        // Who goes when the session has ended has waited for it. Who does not may have waited for
        // it and for those who are about to pass each other.
        let mut doubtful = requests.iter().filter(|request| left.waiters.contains_key(request));
        doubtful.all(|request| rest.leads_to(*request, session))
    }

    /// Whether a request waits for a session, directly or through others. Linear in their waits.
    fn leads_to(&self, request: RequestId, session: FrameId) -> bool {
        let (mut next, mut seen) = (vec![request], BTreeSet::new());
        while let Some(id) = next.pop() {
            let Some(waiter) = self.waiters.get(&id).filter(|_| seen.insert(id)) else { continue };
            let kin = self.kin(waiter.frame, None);
            let items = 0..waiter.request.items.len();
            let holds = items.flat_map(|item| self.holds_in_the_way(waiter, item, &kin));
            let holders: BTreeSet<FrameId> =
                holds.filter_map(|token| Some(self.hold(token)?.frame)).collect();
            let roots = holders.iter().map(|frame| self.session(*frame));
            if roots.chain([self.session(waiter.frame)]).any(|root| root == session) {
                return true;
            }
            next.extend(self.barring(&waiter.request, &kin, self.rank(waiter)));
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
