//! The grant pass: grants waiters the locks that have become free.

use std::collections::BTreeSet;

use super::commit::Transition;
use crate::admission::admit::Admission;
use crate::deadlock::reduction::Edges;
use crate::index::grant_order::Rank;
use crate::index::lock::Lock;
use crate::state::locks::Misfit;
use crate::{
    FrameId, Granted, GrantedItem, Key, Mode, Outcome, Refusal, RequestId, Table, WaiterState,
    WaiterStatus,
};

impl Table {
    /// Grants requests and breaks deadlocks until nothing is left to do. During a recovery it does
    /// nothing; [`Self::revisit_all_waiters`] makes up for it afterwards.
    pub(crate) fn grant_ready(&mut self, transition: &mut Transition<'_>) {
        if self.recovery.is_some() {
            return;
        }
        // The usual case.
        if self.waiters.is_empty() {
            return;
        }
        loop {
            self.revisit_lineages(transition);
            while let Some(request) = transition.worklist().retry.pop_first() {
                self.try_waiter(transition, request);
            }
            while let Some((key, wide)) = transition.worklist().dirty.pop_first() {
                self.grant_around(transition, &key, wide);
                transition.worklist().changed_keys.insert(key);
            }
            let quiet = transition.worklist().holdings_changed.is_empty()
                && transition.worklist().retry.is_empty();
            if quiet
                && !self.grant_by_bypass(transition)
                && !self.take_spares_back(transition)
                && !self.break_deadlock(transition)
            {
                return;
            }
        }
    }

    /// Refuses one request if the candidates contain a deadlock. Returns whether they did.
    pub(crate) fn break_deadlock(&mut self, transition: &mut Transition<'_>) -> bool {
        transition
            .worklist()
            .deadlock_candidates
            .retain(|add_candidates| self.is_deadlock_candidate(*add_candidates));
        let Some((request, cycle)) = self.victim(&transition.worklist().deadlock_candidates) else {
            transition.worklist().deadlock_candidates.clear();
            return false;
        };
        let why = Refusal::Deadlock { cycle };
        self.commit(transition, Outcome::Refused { request, why });
        true
    }

    /// After a recovery: any waiter may now be grantable, or be in a deadlock.
    pub(crate) fn revisit_all_waiters(&self, transition: &mut Transition<'_>) {
        let waiting: Vec<RequestId> = self.waiters.keys().copied().collect();
        for request in &waiting {
            self.mark_waiter_dirty(transition, *request);
        }
        transition.worklist().retry.extend(waiting);
        self.add_all_candidates(transition);
    }

    /// Serves the waiters that a change at `key` can affect. `wide` means that the change included
    /// a write; the end of a read frees only writes, and slots of this key itself.
    fn grant_around(&mut self, transition: &mut Transition<'_>, key: &Key, wide: bool) {
        let path: Vec<Key> = key.path().map(|covering| key.ancestor(covering.len())).collect();
        for covering in &path {
            if wide || covering == key {
                self.grant_counted(transition, covering);
            }
            self.grant_writers(transition, covering);
            if wide {
                self.grant_readers(transition, covering);
            }
        }
        let mut below: Vec<Rank> = self.tree.waiting_below(key, Mode::Write).collect();
        if wide {
            below.extend(self.tree.waiting_below(key, Mode::Read));
        }
        below.sort_unstable();
        for rank in below {
            self.try_waiter(transition, rank.request);
        }
    }

    /// Serves the queue for slots of one key until its next waiter does not fit.
    fn grant_counted(&mut self, transition: &mut Transition<'_>, key: &Key) {
        while let Some(request) = self.tree.lock(key).and_then(|lock| self.next_counted(lock)) {
            if !self.try_waiter(transition, request) {
                return;
            }
        }
    }

    /// The waiter for slots of a key that can be granted next: the first barrier, else the first
    /// waiter that fits. It precedes all waiters behind it.
    fn next_counted(&self, lock: &Lock) -> Option<RequestId> {
        if let Some((first, class)) = lock.queue.barriers().next() {
            return lock.fits(class).then_some(first);
        }
        let firsts = lock.queue.firsts().filter(|(class, _)| lock.fits(*class));
        let (class, rank) = firsts.min_by_key(|(_, rank)| *rank)?;
        let behind = lock.is_preceded(class.capacity, rank);
        (!behind).then_some(rank.request)
    }

    /// Serves the writers of one key. The first writer precedes all that follow it.
    fn grant_writers(&mut self, transition: &mut Transition<'_>, key: &Key) {
        loop {
            let first = self.tree.waiting_here(key, Mode::Write).next();
            let Some(first) = first else { return };
            if !self.try_waiter(transition, first.request) {
                return;
            }
        }
    }

    /// Serves the readers of one key, up to the first writer that competes with them.
    fn grant_readers(&mut self, transition: &mut Transition<'_>, key: &Key) {
        // `grant_by_bypass` finds the readers that are exempt from the conflict.
        if self.tree.conflicts(key, Mode::Read) > 0 {
            return;
        }
        let waiting = self.tree.waiting_here(key, Mode::Read);
        let readers: Vec<Rank> =
            waiting.take_while(|rank| !self.tree.is_preceded(key, Mode::Read, *rank)).collect();
        for Rank { request, .. } in readers {
            let items = self.waiters.get(&request).map(|waiter| &waiter.request.items);
            let reads = items.is_some_and(|items| {
                items.iter().any(|item| item.key == *key && item.ask.mode() == Mode::Read)
            });
            if reads {
                self.try_waiter(transition, request);
            }
        }
    }

    /// Grants a waiter its request if possible. Returns whether it was.
    pub(crate) fn try_waiter(
        &mut self,
        transition: &mut Transition<'_>,
        request: RequestId,
    ) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        if waiter.status != WaiterStatus::Active || self.is_inactive(waiter) {
            return false;
        }
        let Admission::Grant { items, bypassed_blockers } = self.admission_of(waiter) else {
            return false;
        };
        let frame = waiter.frame;
        self.grant_waiter(transition, request, frame, items, bypassed_blockers);
        true
    }

    pub(crate) fn grant_waiter(
        &mut self,
        transition: &mut Transition<'_>,
        request: RequestId,
        frame: FrameId,
        items: Vec<GrantedItem>,
        bypassed_blockers: bool,
    ) {
        let token = self.next_token;
        self.commit(
            transition,
            Outcome::Granted(Granted { request, frame, token, items, bypassed_blockers }),
        );
        self.raise_barriers(transition);
    }

    pub(crate) fn admission_of(&self, waiter: &WaiterState) -> Admission {
        self.admission(&waiter.request, &self.lineage(waiter.frame, None), self.rank(waiter))
    }

    /// Revisits requests after a frame gained or released a hold. Other requests of the frame, and
    /// of the frames inside it, may now share its slots, or can never be granted while it holds
    /// them.
    fn revisit_lineages(&mut self, transition: &mut Transition<'_>) {
        while let Some(holdings_changed) = transition.worklist().holdings_changed.pop_first() {
            let session = self.sessions.get(&self.session(holdings_changed));
            let frames = session.into_iter().flat_map(|session| &session.frames);
            let waiters =
                frames.filter_map(|frame| self.frames.get(frame)).flat_map(|f| &f.waiters);
            let waiters: Vec<RequestId> = waiters.copied().collect();
            for request in waiters {
                self.revisit_request(transition, request, holdings_changed);
            }
        }
    }

    fn revisit_request(
        &mut self,
        transition: &mut Transition<'_>,
        request: RequestId,
        holdings_changed: FrameId,
    ) {
        let Some(waiter) = self.waiters.get(&request) else { return };
        let lineage = self.lineage(waiter.frame, None);
        if waiter.status == WaiterStatus::Suspended
            || !lineage.contains(&holdings_changed)
            || self.try_waiter(transition, request)
        {
            return;
        }
        let Some(waiter) = self.waiters.get(&request) else { return };
        let misfit = self.misfit(&waiter.request, &lineage);
        if !matches!(misfit, Some(Misfit::Paused { .. }))
            && let Some(item) = self.own_deadlock(&waiter.request, &lineage)
        {
            let why = Refusal::OwnDeadlock { item };
            self.commit(transition, Outcome::Refused { request, why });
        } else if misfit.is_some() {
            // It may have been active before, and preceded others.
            self.mark_waiter_dirty(transition, request);
        }
    }

    /// Turns waiters that were overtaken too often into barriers.
    pub(crate) fn raise_barriers(&mut self, transition: &mut Transition<'_>) {
        while let Some(request) = self.bypass_exhausted.pop_first() {
            self.commit(transition, Outcome::Barrier { request });
        }
    }

    /// Turns all waiters that were overtaken too often into barriers, after a change of the policy.
    pub(crate) fn raise_barriers_everywhere(&mut self, transition: &mut Transition<'_>) {
        let waiters = self.waiters.values();
        let exhausted =
            waiters.filter(|waiter| !waiter.barrier && waiter.passed >= self.bypass_max);
        self.bypass_exhausted = exhausted.map(|waiter| waiter.id).collect();
        self.raise_barriers(transition);
    }

    /// Grants one request of a session that both holds and waits. The holds of its frames may
    /// exempt it from a conflict, or its predecessors may be waiting for it. Returns whether a
    /// request was granted.
    pub(crate) fn grant_by_bypass(&mut self, transition: &mut Transition<'_>) -> bool {
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
