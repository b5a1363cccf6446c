//! Passing waiters that wait for the very session that asks.
//!
//! Such a waiter cannot be granted before that session moves, so to let it bar would make a
//! deadlock on a lock that is free. Sessions that hold nothing keep nobody waiting and need none
//! of this.

use std::collections::BTreeSet;

use super::admit::Verdict;
use super::apply::Turn;
use super::queue::{self, Rank};
use super::{FrameId, Key, Request, RequestId, Table, WaiterStatus};

impl Table {
    /// Grants one request of a session that holds something: what its frames hold may exempt it
    /// from what keeps all others, or those who bar it may wait for it. Whether it did.
    pub(super) fn settle_entangled(&mut self, turn: &mut Turn<'_>) -> bool {
        let edges = std::mem::take(&mut turn.edges);
        let mut concerned: Vec<(Rank, RequestId)> =
            if edges { self.entangled_waiters() } else { self.entangled_near(&turn.seen) };
        concerned.retain(|(_, request)| {
            self.waiters
                .get(request)
                .is_some_and(|waiter| waiter.status == WaiterStatus::Active && !self.parked(waiter))
        });
        concerned.sort_unstable();
        let mut requests = concerned.iter().map(|(_, request)| *request);
        let granted = requests.clone().any(|request| self.try_waiter(turn, request))
            || turn.looks_past_own() && requests.any(|request| self.try_past_own(turn, request));
        if granted {
            turn.edges |= edges;
        } else {
            turn.seen.clear();
        }
        granted
    }

    fn try_past_own(&mut self, turn: &mut Turn<'_>, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let kin = self.kin(waiter.frame, None);
        let (frame, asked, rank) = (waiter.frame, waiter.request.clone(), self.rank(waiter));
        let verdict = self.verdict_past_own(&asked, &kin, frame, rank);
        let Some(Verdict::Grant { items, .. }) = verdict else { return false };
        self.grant_waiter(turn, request, (frame, asked), items, true);
        true
    }

    fn entangled_waiters(&self) -> Vec<(Rank, RequestId)> {
        let requests = self.entangled.iter().flat_map(|root| self.waiters_of_session(*root));
        let waiters = requests.filter_map(|id| self.waiters.get(&id));
        waiters.map(|waiter| (self.rank(waiter), waiter.id)).collect()
    }

    /// Those who want one of these keys, or one above or below them.
    fn entangled_near(&self, keys: &BTreeSet<Key>) -> Vec<(Rank, RequestId)> {
        if self.entangled.is_empty() {
            return Vec::new();
        }
        let near: BTreeSet<Rank> =
            keys.iter().flat_map(|key| self.tree.waiting_around(key)).collect();
        let request = |rank: Rank| (rank, queue::request_at(self.rules, rank.place));
        let mut near: Vec<(Rank, RequestId)> = near.into_iter().map(request).collect();
        near.retain(|(_, id)| {
            let frame = self.waiters.get(id).map(|waiter| waiter.frame);
            frame.is_some_and(|frame| self.entangled.contains(&self.session(frame)))
        });
        near
    }

    /// The verdict over a request that fits and is barred, if those who bar it all wait for its
    /// own session, directly or through others.
    pub(super) fn verdict_past_own(
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
        if barring.is_empty() || !barring.is_subset(&self.stuck_without(session, &barring)) {
            return None;
        }
        Some(Verdict::Grant { items, past_own: true })
    }

    /// The requests that still wait after everybody has ended who can without `session` moving,
    /// among those that `start` can wait for. The requests of `session` itself stay where they
    /// are; who is stopped takes no part.
    fn stuck_without(&self, session: FrameId, start: &BTreeSet<RequestId>) -> BTreeSet<RequestId> {
        let mut part = self.part(start.iter().copied());
        part.wake(Some(session));
        part.reduce(Some(session), false);
        part.waiters.keys().copied().collect()
    }
}
