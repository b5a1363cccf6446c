//! Granting to waiters what has become free.

use std::collections::BTreeSet;

use super::admit::Verdict;
use super::apply::Turn;
use super::lock::Lock;
use super::queue::{self, Rank};
use super::{
    Change, ENTRY_VERSION, Entry, FrameId, Granted, Key, Outcome, Refusal, Request, RequestId,
    Table, UnixMillis, WaiterState, WaiterStatus,
};

impl Table {
    /// Grants to waiters until nobody can be granted any more.
    pub(super) fn settle(&mut self, turn: &mut Turn<'_>) {
        loop {
            self.settle_kin(turn);
            while let Some(key) = turn.dirty.pop_first() {
                self.settle_key(turn, &key);
                turn.seen.insert(key);
            }
            if turn.grown.is_empty() && (turn.analysis || !self.settle_past_own(turn)) {
                return;
            }
        }
    }

    /// Serves the queue of one key as far as it goes.
    fn settle_key(&mut self, turn: &mut Turn<'_>, key: &Key) {
        while let Some(request) = self.locks.get(key).and_then(|lock| self.next_served(lock)) {
            let Some(waiter) = self.waiters.get(&request) else { return };
            match self.verdict_of(waiter) {
                Verdict::Grant { items, past_own } => {
                    let granted = (waiter.frame, waiter.request.clone());
                    let past_own = past_own || turn.analysis;
                    self.grant_waiter(turn, request, granted, items, past_own);
                }
                Verdict::Full(_) | Verdict::Barred(_) => return,
            }
        }
    }

    fn grant_waiter(
        &mut self,
        turn: &mut Turn<'_>,
        request: RequestId,
        (frame, asked): (FrameId, Request),
        items: Vec<super::GrantedItem>,
        past_own: bool,
    ) {
        let token = self.next_token;
        self.decide(turn, Outcome::Granted(Granted { request, frame, token, items, past_own }));
        self.raise_barriers(turn, &asked);
    }

    /// The only waiter of a key that can be served next: the first barrier, else the first that
    /// fits; whoever fits bars all behind it.
    fn next_served(&self, lock: &Lock) -> Option<RequestId> {
        let active = |id: &RequestId| {
            self.waiters.get(id).is_some_and(|waiter| waiter.status == WaiterStatus::Active)
        };
        if let Some((first, class)) = lock.queue.barriers().next() {
            return lock.fits(class).then_some(first).filter(active);
        }
        let firsts = lock.queue.firsts().filter(|(class, _)| lock.fits(*class));
        let (class, rank) = firsts.min_by_key(|(_, rank)| *rank)?;
        let barred = lock.bars(lock.capacity(class), rank, None);
        let request = queue::request_at(self.rules, rank.place);
        (!barred).then_some(request).filter(active)
    }

    pub(super) fn verdict_of(&self, waiter: &WaiterState) -> Verdict {
        let kin = self.kin(waiter.frame, None);
        let barrier = waiter.barrier.then_some(waiter.id);
        self.verdict(&waiter.request, &kin, self.rank(waiter), barrier)
    }

    /// After a frame was granted something: other requests of it and of the frames inside it may
    /// now share its slots, or can never be granted while it holds them.
    fn settle_kin(&mut self, turn: &mut Turn<'_>) {
        while let Some(grown) = turn.grown.pop_first() {
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
        if waiter.status != WaiterStatus::Active || !kin.contains(&grown) {
            return;
        }
        match self.verdict_of(waiter) {
            Verdict::Grant { items, past_own } => {
                let granted = (waiter.frame, waiter.request.clone());
                self.grant_waiter(turn, request, granted, items, past_own || turn.analysis);
            }
            Verdict::Full(_) | Verdict::Barred(_) => {
                if let Some(item) = self.own_deadlock(&waiter.request, &kin) {
                    let why = Refusal::OwnDeadlock { item };
                    self.decide(turn, Outcome::Refused { request, why });
                }
            }
        }
    }

    /// Makes barriers of the waiters of a request's keys that were overtaken often enough.
    pub(super) fn raise_barriers(&mut self, turn: &mut Turn<'_>, asked: &Request) {
        if turn.analysis {
            return;
        }
        for item in &asked.items {
            self.raise_barriers_of(turn, &item.key);
        }
    }

    pub(super) fn raise_barriers_everywhere(&mut self, turn: &mut Turn<'_>) {
        let keys: Vec<Key> = self.locks.keys().cloned().collect();
        for key in keys {
            self.raise_barriers_of(turn, &key);
        }
    }

    fn raise_barriers_of(&mut self, turn: &mut Turn<'_>, key: &Key) {
        let max = self.bypass_max;
        let overtaken =
            |table: &Self| table.locks.get(key).and_then(|lock| lock.queue.overtaken_enough(max));
        while let Some(place) = overtaken(self) {
            let request = queue::request_at(self.rules, place);
            self.decide(turn, Outcome::Barrier { request });
        }
    }

    /// Grants one request that only waiters bar which cannot be granted before the request's own
    /// session moves. Whether it did.
    fn settle_past_own(&mut self, turn: &mut Turn<'_>) -> bool {
        let edges = std::mem::take(&mut turn.edges);
        let candidates: Vec<RequestId> = self.entangled_waiters().collect();
        for request in candidates {
            let Some(waiter) = self.waiters.get(&request) else { continue };
            let near = waiter.request.items.iter().any(|item| turn.seen.contains(&item.key));
            if waiter.status != WaiterStatus::Active || !(edges || near) {
                continue;
            }
            let kin = self.kin(waiter.frame, None);
            let barrier = waiter.barrier.then_some(request);
            let rank = self.rank(waiter);
            let (frame, asked) = (waiter.frame, waiter.request.clone());
            let verdict = self.verdict_past_own(&asked, &kin, frame, rank, barrier);
            if let Some(Verdict::Grant { items, .. }) = verdict {
                self.grant_waiter(turn, request, (frame, asked), items, true);
                turn.edges |= edges;
                return true;
            }
        }
        turn.seen.clear();
        false
    }

    fn entangled_waiters(&self) -> impl Iterator<Item = RequestId> + '_ {
        let sessions = self.entangled.iter().filter_map(|root| self.sessions.get(root));
        let frames = sessions.flat_map(|session| &session.frames);
        frames.filter_map(|frame| self.frames.get(frame)).flat_map(|f| f.waiters.iter().copied())
    }

    /// The verdict over a request that fits and is barred, if those who bar it all wait for its
    /// own session, directly or through others. A session that holds nothing keeps nobody waiting.
    pub(super) fn verdict_past_own(
        &self,
        asked: &Request,
        kin: &[FrameId],
        frame: FrameId,
        rank: Rank,
        barrier: Option<RequestId>,
    ) -> Option<Verdict> {
        let outermost = kin.last().copied().unwrap_or(frame);
        let session = self.session(outermost);
        if self.sessions.get(&session).is_none_or(|session| session.holds == 0) {
            return None;
        }
        if !matches!(self.verdict(asked, kin, rank, barrier), Verdict::Barred(_)) {
            return None;
        }
        let stuck = self.stuck_without(session);
        let verdict = self.judge(asked, kin, |lock, capacity| {
            self.ahead(lock, capacity, rank, barrier).any(|waiter| !stuck.contains(&waiter))
        });
        match verdict {
            Verdict::Grant { items, .. } => Some(Verdict::Grant { items, past_own: true }),
            Verdict::Full(_) | Verdict::Barred(_) => None,
        }
    }

    /// The waiters that bar a request, own blockers not looked at.
    pub(super) fn ahead(
        &self,
        lock: &Lock,
        capacity: u64,
        rank: Rank,
        barrier: Option<RequestId>,
    ) -> impl Iterator<Item = RequestId> {
        let barriers = lock
            .queue
            .barriers()
            .map(|(id, _)| id)
            .filter(|id| barrier.is_none_or(|own| *id < own));
        let mut ahead: Vec<RequestId> = barriers.collect();
        if barrier.is_none() {
            let others = lock.queue.ranks().into_iter().filter(|(other, _)| *other < rank);
            let others = others.filter(|(_, class)| lock.holds_back(*class, capacity));
            ahead.extend(others.map(|(rank, _)| queue::request_at(self.rules, rank.place)));
        }
        ahead.into_iter()
    }

    /// The requests that still wait after everybody has ended who can without `session` moving:
    /// a reduction of a copy of the table, with the rules by which it really grants. The requests
    /// of `session` itself stay where they are.
    fn stuck_without(&self, session: FrameId) -> BTreeSet<RequestId> {
        let mut copy = self.clone();
        let entry = |change| Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
        let nothing = entry(Change::Policy { bypass_max: self.bypass_max });
        let mut outcomes = Vec::new();
        let mut turn = Turn::new(&nothing, &mut outcomes, true);
        for waiter in self.waiters.values() {
            let request = waiter.id;
            if self.session(waiter.frame) == session {
                copy.mark_waiter(request, WaiterStatus::Detached);
            } else if waiter.status != WaiterStatus::Active {
                copy.mark_waiter(request, WaiterStatus::Active);
                turn.dirty.extend(waiter.request.items.iter().map(|item| item.key.clone()));
                turn.grown.insert(waiter.frame);
            }
        }
        copy.settle(&mut turn);
        while copy.end_movers(&mut turn, session) {
            copy.settle(&mut turn);
        }
        copy.waiters.keys().copied().collect()
    }

    /// Ends every session but `frozen` that holds something and waits for nothing. Whether there
    /// was one.
    fn end_movers(&mut self, turn: &mut Turn<'_>, frozen: FrameId) -> bool {
        let moves = |(root, session): (&FrameId, &super::table::Session)| {
            let ends = *root != frozen && session.holds > 0 && !self.waits(session);
            ends.then(|| session.frames.clone())
        };
        let movers: BTreeSet<FrameId> = self.sessions.iter().filter_map(moves).flatten().collect();
        let frames = movers.iter().filter_map(|frame| self.frames.get(frame));
        let tokens: Vec<super::Token> =
            frames.flat_map(|frame| frame.holds.iter().copied()).collect();
        for token in &tokens {
            self.release_whole(turn, *token);
        }
        !tokens.is_empty()
    }

    /// Whether a session waits for something that others can give it.
    fn waits(&self, session: &super::table::Session) -> bool {
        session.waiters > 0
            && session.frames.iter().filter_map(|frame| self.frames.get(frame)).any(|frame| {
                frame.waiters.iter().filter_map(|id| self.waiters.get(id)).any(|w| !self.parked(w))
            })
    }
}
