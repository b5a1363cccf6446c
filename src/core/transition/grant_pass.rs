//! Granting to waiters what has become free.

use std::sync::Arc;

use super::worklist::Turn;
use crate::core::admission::admit::Verdict;
use crate::core::index::lock::Lock;
use crate::core::index::queue::{self, Rank};
use crate::core::{
    FrameId, Granted, GrantedItem, Key, Mode, Outcome, Refusal, Request, RequestId, Table,
    WaiterState, WaiterStatus,
};

impl Table {
    /// Grants to waiters until nobody can be granted any more, and no deadlock is left. During a
    /// recovery it does neither: [`Self::settle_everyone`] catches up.
    pub(in crate::core) fn settle(&mut self, turn: &mut Turn<'_>) {
        if self.recovery.is_some() {
            return;
        }
        // The rule, on most keys of most machines.
        if self.waiters.is_empty() {
            return;
        }
        loop {
            self.settle_kin(turn);
            while let Some(request) = turn.concerned().retry.pop_first() {
                self.try_waiter(turn, request);
            }
            while let Some((key, wide)) = turn.concerned().dirty.pop_first() {
                self.settle_around(turn, &key, wide);
                turn.concerned().seen.insert(key);
            }
            let quiet = turn.concerned().grown.is_empty() && turn.concerned().retry.is_empty();
            if quiet && !self.settle_entangled(turn) && !self.break_deadlock(turn) {
                return;
            }
        }
    }

    /// After a recovery: any waiter may be granted its request, or be in a deadlock.
    pub(in crate::core) fn settle_everyone(&self, turn: &mut Turn<'_>) {
        let waiting: Vec<RequestId> = self.waiters.keys().copied().collect();
        for request in &waiting {
            self.dirty_waiter(turn, *request);
        }
        turn.concerned().retry.extend(waiting);
        self.suspect_everyone(turn);
    }

    /// Serves those whom a change at `key` can concern. `wide` says that a write is concerned;
    /// the end of a read frees only writes, and slots of the very key.
    fn settle_around(&mut self, turn: &mut Turn<'_>, key: &Key, wide: bool) {
        let path: Vec<Key> = key.path().map(|covering| key.ancestor(covering.len())).collect();
        for covering in &path {
            if wide || covering == key {
                self.settle_counted(turn, covering);
            }
            self.settle_writers(turn, covering);
            if wide {
                self.settle_readers(turn, covering);
            }
        }
        let mut below: Vec<Rank> = self.tree.waiting_below(key, Mode::Write).collect();
        if wide {
            below.extend(self.tree.waiting_below(key, Mode::Read));
        }
        below.sort_unstable();
        for rank in below {
            self.try_waiter(turn, queue::request_at(self.rules, rank.place));
        }
    }

    /// Serves the queue for slots of one key as far as it goes.
    fn settle_counted(&mut self, turn: &mut Turn<'_>, key: &Key) {
        while let Some(request) = self.tree.lock(key).and_then(|lock| self.next_counted(lock)) {
            if !self.try_waiter(turn, request) {
                return;
            }
        }
    }

    /// The only waiter for slots of a key that can be served next: the first barrier, else the
    /// first that fits; whoever fits bars all behind it.
    fn next_counted(&self, lock: &Lock) -> Option<RequestId> {
        if let Some((first, class)) = lock.queue.barriers().next() {
            return lock.fits(class).then_some(first);
        }
        let firsts = lock.queue.firsts().filter(|(class, _)| lock.fits(*class));
        let (class, rank) = firsts.min_by_key(|(_, rank)| *rank)?;
        let barred = lock.bars(lock.capacity(class), rank);
        (!barred).then(|| queue::request_at(self.rules, rank.place))
    }

    /// Serves those who wait to write one key: the first bars all behind it.
    fn settle_writers(&mut self, turn: &mut Turn<'_>, key: &Key) {
        loop {
            let first = self.tree.waiting_here(key, Mode::Write).next();
            let Some(first) = first else { return };
            if !self.try_waiter(turn, queue::request_at(self.rules, first.place)) {
                return;
            }
        }
    }

    /// Serves those who wait to read one key, up to the first writer that competes with them.
    fn settle_readers(&mut self, turn: &mut Turn<'_>, key: &Key) {
        // Who is exempt from what conflicts is found by `settle_entangled`.
        if self.tree.conflicts(key, Mode::Read) > 0 {
            return;
        }
        let waiting = self.tree.waiting_here(key, Mode::Read);
        let readers: Vec<Rank> =
            waiting.take_while(|rank| !self.tree.bars(key, Mode::Read, *rank)).collect();
        for rank in readers {
            let request = queue::request_at(self.rules, rank.place);
            let items = self.waiters.get(&request).map(|waiter| &waiter.request.items);
            let reads = items.is_some_and(|items| {
                items.iter().any(|item| item.key == *key && item.ask.mode() == Mode::Read)
            });
            if reads {
                self.try_waiter(turn, request);
            }
        }
    }

    /// Grants to a waiter if that is possible; whether it was.
    pub(in crate::core) fn try_waiter(&mut self, turn: &mut Turn<'_>, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        if waiter.status != WaiterStatus::Active || self.parked(waiter) {
            return false;
        }
        let Verdict::Grant { items, past_own } = self.verdict_of(waiter) else { return false };
        let granted = (waiter.frame, waiter.request.clone());
        self.grant_waiter(turn, request, granted, items, past_own);
        true
    }

    pub(in crate::core) fn grant_waiter(
        &mut self,
        turn: &mut Turn<'_>,
        request: RequestId,
        (frame, asked): (FrameId, Arc<Request>),
        items: Vec<GrantedItem>,
        past_own: bool,
    ) {
        let token = self.next_token;
        self.decide(turn, Outcome::Granted(Granted { request, frame, token, items, past_own }));
        self.raise_barriers(turn, &asked);
    }

    pub(in crate::core) fn verdict_of(&self, waiter: &WaiterState) -> Verdict {
        self.verdict(&waiter.request, &self.kin(waiter.frame, None), self.rank(waiter))
    }

    /// After a frame was granted something, or let go of something: other requests of it and of the
    /// frames inside it may now share what it has, or can never be granted while it has it.
    fn settle_kin(&mut self, turn: &mut Turn<'_>) {
        while let Some(grown) = turn.concerned().grown.pop_first() {
            let session = self.sessions.get(&self.session(grown));
            let frames = session.into_iter().flat_map(|session| &session.frames);
            let waiters =
                frames.filter_map(|frame| self.frames.get(frame)).flat_map(|f| &f.waiters);
            let waiters: Vec<RequestId> = waiters.copied().collect();
            for request in waiters {
                self.settle_kinsman(turn, request, grown);
            }
        }
    }

    fn settle_kinsman(&mut self, turn: &mut Turn<'_>, request: RequestId, grown: FrameId) {
        let Some(waiter) = self.waiters.get(&request) else { return };
        let kin = self.kin(waiter.frame, None);
        if self.is_aside(waiter) || !kin.contains(&grown) || self.try_waiter(turn, request) {
            return;
        }
        let Some(waiter) = self.waiters.get(&request) else { return };
        if let Some(item) = self.own_deadlock(&waiter.request, &kin) {
            let why = Refusal::OwnDeadlock { item };
            self.decide(turn, Outcome::Refused { request, why });
        }
    }

    /// Makes barriers of those who were overtaken often enough, among the waiters that a request
    /// competes with.
    pub(in crate::core) fn raise_barriers(&mut self, turn: &mut Turn<'_>, asked: &Request) {
        while let Some(request) = self.ripe.pop_first() {
            if self.waiters.get(&request).is_some_and(|waiter| !waiter.barrier) {
                self.decide(turn, Outcome::Barrier { request });
            }
        }
        if self.waiters.is_empty() {
            return;
        }
        for item in &asked.items {
            self.raise_barriers_of(turn, &item.key);
        }
    }

    pub(in crate::core) fn raise_barriers_everywhere(&mut self, turn: &mut Turn<'_>) {
        let keys: Vec<Key> = self.tree.locks().map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.raise_barriers_of(turn, &key);
        }
        let ripe = |waiter: &&WaiterState| !waiter.barrier && waiter.passed >= self.bypass_max;
        let ripe: Vec<RequestId> = self.waiters().filter(ripe).map(|waiter| waiter.id).collect();
        for request in ripe {
            self.decide(turn, Outcome::Barrier { request });
        }
    }

    fn raise_barriers_of(&mut self, turn: &mut Turn<'_>, key: &Key) {
        let max = self.bypass_max;
        let overtaken =
            |table: &Self| table.tree.lock(key).and_then(|lock| lock.queue.overtaken_enough(max));
        while let Some(place) = overtaken(self) {
            let request = queue::request_at(self.rules, place);
            self.decide(turn, Outcome::Barrier { request });
        }
    }
}
