//! Passing waiters that wait for the very session that asks.
//!
//! Such a waiter cannot be granted before that session moves, so to let it bar would make a
//! deadlock on a lock that is free. Sessions that hold nothing keep nobody waiting and need none
//! of this.

use std::collections::BTreeSet;

use super::admit::Verdict;
use super::apply::Turn;
use super::queue::Rank;
use super::{FrameId, Key, Request, RequestId, Table, WaiterState, WaiterStatus};

impl Table {
    /// Grants one request of a session that holds something: what its frames hold may exempt it
    /// from what keeps all others, or those who bar it may wait for it. Whether it did.
    pub(super) fn settle_entangled(&mut self, turn: &mut Turn<'_>) -> bool {
        let edges = std::mem::take(&mut turn.edges);
        let concerned = |waiter: &&WaiterState| {
            waiter.status == WaiterStatus::Active
                && (edges || is_near(waiter, &turn.seen))
                && !self.parked(waiter)
        };
        let waiters = self.entangled_waiters().filter_map(|id| self.waiters.get(&id));
        let mut concerned: Vec<(Rank, RequestId)> =
            waiters.filter(concerned).map(|waiter| (self.rank(waiter), waiter.id)).collect();
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

    fn entangled_waiters(&self) -> impl Iterator<Item = RequestId> + '_ {
        let sessions = self.entangled.iter().filter_map(|root| self.sessions.get(root));
        let frames = sessions.flat_map(|session| &session.frames);
        frames.filter_map(|frame| self.frames.get(frame)).flat_map(|f| f.waiters.iter().copied())
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

/// Whether a waiter wants one of these keys, or one above or below them.
fn is_near(waiter: &WaiterState, keys: &BTreeSet<Key>) -> bool {
    let items = || waiter.request.items.iter().map(|item| &item.key);
    keys.iter().any(|key| items().any(|other| key.covers(other) || other.covers(key)))
}
