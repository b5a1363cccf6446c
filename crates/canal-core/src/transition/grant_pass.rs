//! The grant pass: grants waiters the locks that have become free.

use std::collections::{BTreeMap, BTreeSet};

use super::commit::Transition;
use crate::deadlock::graph_reduction::Edges;
use crate::index::counted_lock::Lock;
use crate::index::grant_order::Rank;
use crate::{Granted, GrantedItem, Key, Mode, Outcome, Refusal, RequestId, Table, WaiterStatus};

impl Transition<'_> {
    /// Grants requests and breaks deadlocks until nothing is left to do. During a recovery it does
    /// nothing; [`Table::apply`] makes up for it afterwards.
    pub(crate) fn grant_ready(&mut self) {
        // Usually, no request waits.
        if self.table.globals.recovery.is_some() || self.table.waiters.is_empty() {
            return;
        }
        loop {
            self.revisit_lineages();
            while let Some(request) = self.work.retry.pop_first() {
                self.try_waiter(request);
            }
            while let Some((key, wide)) = self.work.dirty.pop_first() {
                self.grant_around(&key, wide);
                self.work.changed_keys.insert(key);
            }
            let is_quiet = self.work.holdings_changed.is_empty() && self.work.retry.is_empty();
            if is_quiet
                && !self.grant_by_bypass()
                && !self.take_spares_back()
                && !self.break_deadlock()
            {
                return;
            }
        }
    }

    /// Refuses one request if the candidates contain a deadlock. Returns whether they did.
    fn break_deadlock(&mut self) -> bool {
        let candidates = &mut self.work.deadlock_candidates;
        candidates.retain(|candidate| self.table.is_deadlock_candidate(*candidate));
        let Some((request, cycle)) = self.table.victim(candidates) else {
            candidates.clear();
            return false;
        };
        let why = Refusal::Deadlock { cycle };
        self.commit(Outcome::Refused { request, why });
        true
    }

    /// Serves the waiters that a change at `key` can affect. `wide` means that the change included
    /// a write; the end of a read frees only writes, and slots of this key itself.
    fn grant_around(&mut self, key: &Key, wide: bool) {
        for covering in key.path().map(|covering| key.ancestor(covering.len())) {
            if wide || covering == *key {
                // Until the next waiter does not fit.
                while let Some(request) = next_counted(self.table.tree.lock(&covering))
                    && self.try_waiter(request)
                {}
            }
            // The first writer precedes all that follow it.
            let first = |table: &Table| table.tree.waiting_here(&covering, Mode::Write).next();
            while let Some(first) = first(self.table)
                && self.try_waiter(first.request)
            {}
            if wide {
                self.grant_readers(&covering);
            }
        }
        let freed = if wide { Mode::Write } else { Mode::Read };
        let below = self.table.tree.node(key).map(|node| node.below.waits.against(freed));
        let below = below.into_iter().flatten().flat_map(BTreeMap::keys);
        for rank in below.copied().collect::<BTreeSet<Rank>>() {
            self.try_waiter(rank.request);
        }
    }

    /// Serves the readers of one key, up to the first writer that competes with them.
    fn grant_readers(&mut self, key: &Key) {
        let tree = &self.table.tree;
        // `grant_by_bypass` finds the readers that are exempt from the conflict.
        if tree.conflicts(key, Mode::Read) > 0 {
            return;
        }
        let waiting = tree.waiting_here(key, Mode::Read);
        let readers =
            waiting.take_while(|rank| tree.first_before(key, Mode::Read, *rank).is_none());
        let readers: Vec<RequestId> = readers.map(|rank| rank.request).collect();
        for request in readers {
            let waiter = self.table.waiters.get(&request);
            let mut items = waiter.into_iter().flat_map(|waiter| &waiter.request.items);
            if items.any(|item| item.key == *key && item.ask.mode() == Mode::Read) {
                self.try_waiter(request);
            }
        }
    }

    /// Grants a waiter its request if possible. Returns whether it was.
    fn try_waiter(&mut self, request: RequestId) -> bool {
        let Some(waiter) = self.table.waiters.get(&request) else { return false };
        if waiter.status != WaiterStatus::Active || self.table.is_inactive(waiter) {
            return false;
        }
        let items = self.table.admission(&self.table.contender(waiter)).ok();
        self.grant(request, items, false)
    }

    /// Grants a waiter these items, if it can have them. Returns whether it can.
    fn grant(&mut self, id: RequestId, items: Option<Vec<GrantedItem>>, bypasses: bool) -> bool {
        let Some((waiter, items)) = self.table.waiters.get(&id).zip(items) else { return false };
        let (request, bypassed_blockers) = (id, bypasses);
        let (frame, token) = (waiter.frame, self.table.globals.next_token);
        self.commit(Outcome::Granted(Granted { request, frame, token, items, bypassed_blockers }));
        self.raise_barriers();
        true
    }

    /// Revisits requests after a frame gained or released a hold. Other requests of the frame, and
    /// of the frames inside it, may now share its slots, or can never be granted while it holds
    /// them.
    fn revisit_lineages(&mut self) {
        while let Some(changed) = self.work.holdings_changed.pop_first() {
            let session = self.table.session(changed);
            let waiters: Vec<RequestId> = self.table.waiters_of_session(session).collect();
            for request in waiters {
                let Some(waiter) = self.table.waiters.get(&request) else { continue };
                if waiter.status == WaiterStatus::Suspended
                    || !self.table.contender(waiter).lineage.contains(&changed)
                    || self.try_waiter(request)
                {
                    continue;
                }
                let Some(waiter) = self.table.waiters.get(&request) else { continue };
                let contender = self.table.contender(waiter);
                let misfit = self.table.misfit(&contender);
                if !matches!(misfit, Some(Refusal::Paused { .. }))
                    && let Some(item) = self.table.own_deadlock(&contender)
                {
                    let why = Refusal::OwnDeadlock { item };
                    self.commit(Outcome::Refused { request, why });
                } else if misfit.is_some() {
                    // It may have been active before, and preceded others.
                    self.mark_waiter_dirty(request);
                }
            }
        }
    }

    /// Turns waiters that were overtaken too often into barriers.
    pub(crate) fn raise_barriers(&mut self) {
        while let Some(request) = self.table.bypass_exhausted.pop_first() {
            self.commit(Outcome::Barrier { request });
        }
    }

    /// Turns all waiters that were overtaken too often into barriers, after a change of the policy.
    pub(crate) fn raise_barriers_everywhere(&mut self) {
        let (waiters, most) = (self.table.waiters.values(), self.table.globals.bypass_max);
        let exhausted = waiters.filter(|waiter| !waiter.barrier && waiter.passed >= most);
        self.table.bypass_exhausted = exhausted.map(|waiter| waiter.id).collect();
        self.raise_barriers();
    }

    /// Grants one request of a session that both holds and waits. The holds of its frames may
    /// exempt it from a conflict, or its predecessors may be waiting for it. Returns whether a
    /// request was granted.
    fn grant_by_bypass(&mut self) -> bool {
        if !self.table.hold_and_wait.is_empty() {
            let near = self.table.in_order(self.table.hold_and_wait_near(&self.work.changed_keys));
            let beyond = self.table.in_order(self.table.hold_and_wait_beyond(&self.work.new_waits));
            if near.iter().any(|request| self.try_waiter(*request)) {
                return true;
            }
            for request in near.iter().chain(&beyond) {
                let Some(waiter) = self.table.waiters.get(request) else { continue };
                let items = self.table.admit_by_bypass(&self.table.contender(waiter));
                if self.grant(*request, items, true) {
                    return true;
                }
            }
        }
        self.work.changed_keys.clear();
        self.work.new_waits.clear();
        false
    }
}

/// The waiter for slots that can be granted next: the first barrier, else the first waiter that
/// fits. It precedes all waiters behind it.
fn next_counted(lock: &Lock) -> Option<RequestId> {
    let fitting = lock.queue.iter().filter(|(class, _)| lock.fits(**class));
    let firsts = fitting.filter_map(|(class, waits)| Some((*waits.keys().next()?, class.capacity)));
    let (rank, capacity) = firsts.min()?;
    lock.first_ahead(capacity, rank).is_none().then_some(rank.request)
}

impl Table {
    /// Requests of hold-and-wait sessions for one of these keys, or for a key above or below it.
    fn hold_and_wait_near(&self, keys: &BTreeSet<Key>) -> BTreeSet<RequestId> {
        let holds_and_waits = |id: &RequestId| {
            let waiter = self.waiters.get(id);
            waiter.is_some_and(|waiter| self.hold_and_wait.contains(&self.session(waiter.frame)))
        };
        keys.iter().flat_map(|key| self.waiting_near(key)).filter(holds_and_waits).collect()
    }

    /// Requests of the hold-and-wait sessions that can be reached from new waits. Only for these
    /// can a predecessor have begun to wait for the requester's session.
    fn hold_and_wait_beyond(&self, edges: &BTreeSet<RequestId>) -> BTreeSet<RequestId> {
        let awaited = edges.iter().copied().filter(|request| self.blocks_others(*request));
        let sessions = self.reachable(awaited.collect(), Edges::HoldsAndOrder).sessions;
        let hold_and_wait = sessions.intersection(&self.hold_and_wait);
        hold_and_wait.flat_map(|session| self.waiters_of_session(*session)).collect()
    }

    /// Whether another request can wait for this one, or for a hold of its session.
    fn blocks_others(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let session = self.session(waiter.frame);
        self.waiters_of_session(session).any(|request| self.precedes_others(request))
            || self.holds_what_others_want(session)
    }

    /// Whether a waiter is ahead of others that compete with it.
    fn precedes_others(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let rank = Rank::of(waiter);
        waiter.request.items.iter().any(|item| {
            let (key, mode) = (&item.key, item.ask.mode());
            mode == Mode::Counted && self.tree.lock(key).has_behind(rank)
                || self.tree.has_behind(key, mode, rank)
        })
    }
}
