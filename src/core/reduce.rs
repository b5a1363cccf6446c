//! Thinking ahead: a part of the table, copied, in which everyone ends who can.

use std::collections::{BTreeMap, BTreeSet};

use super::apply::{Thought, Turn};
use super::{
    Change, ENTRY_VERSION, Entry, FrameId, Key, Mode, Outcome, RequestId, Snapshot, StoredView,
    Table, Token, UnixMillis, WaiterStatus,
};

impl Table {
    /// The part of the table that some requests can wait for, as a table of its own: their
    /// sessions, all who hold what they want, all who go first, and so on from those.
    pub(super) fn part(&self, start: impl Iterator<Item = RequestId>) -> Self {
        let (sessions, keys) = self.reach(start);
        let frames = sessions.iter().filter_map(|root| self.sessions.get(root));
        let frames: BTreeSet<FrameId> =
            frames.flat_map(|session| &session.frames).copied().collect();
        let of = |frame: &FrameId| self.frames.get(frame);
        let held = frames.iter().filter_map(of).flat_map(|frame| &frame.holds);
        let holds: BTreeMap<Token, _> =
            held.filter_map(|token| Some((*token, self.holds.get(token)?.clone()))).collect();
        let waiting = frames.iter().filter_map(of).flat_map(|frame| &frame.waiters);
        let mut waiters: BTreeMap<RequestId, _> =
            waiting.filter_map(|id| Some((*id, self.waiters.get(id)?.clone()))).collect();
        for waiter in waiters.values_mut() {
            waiter.overtaken.fill(0);
        }
        let mut keys = keys;
        keys.extend(holds.values().flat_map(|hold| hold.items.iter().map(|item| item.key.clone())));
        let view = |key: &Key, own: bool| {
            let lock = self.locks.get(key)?;
            let view = if own { lock.own } else { lock.stored }?;
            Some(StoredView { key: key.clone(), view })
        };
        let snapshot = Snapshot {
            revision: self.revision,
            next_token: self.next_token,
            bypass_max: u32::MAX,
            views: keys.iter().filter_map(|key| view(key, false)).collect(),
            in_use: keys.iter().filter_map(|key| view(key, true)).collect(),
            frames: frames.iter().filter_map(of).map(|frame| frame.state.clone()).collect(),
            holds: holds.into_values().collect(),
            waiters: waiters.into_values().collect(),
            past_leases: Vec::new(),
            hosts: Vec::new(),
        };
        match Self::restore(&snapshot, self.rules) {
            Ok(part) => part,
            // A part of a table contradicts itself no more than the whole does.
            Err(misfit) => panic!("a part of the table is no table: {misfit}"),
        }
    }

    /// The sessions that some requests can wait for, their own among them, and the keys concerned.
    fn reach(&self, start: impl Iterator<Item = RequestId>) -> (BTreeSet<FrameId>, BTreeSet<Key>) {
        let (mut sessions, mut keys) = (BTreeSet::new(), BTreeSet::new());
        let mut seen = BTreeSet::new();
        let mut next: Vec<RequestId> = start.collect();
        while let Some(id) = next.pop() {
            let Some(waiter) = self.waiters.get(&id).filter(|_| seen.insert(id)) else { continue };
            keys.extend(waiter.request.items.iter().map(|item| item.key.clone()));
            let mut frames = BTreeSet::from([waiter.frame]);
            for item in &waiter.request.items {
                frames.extend(self.holders_in_the_way(&item.key, item.ask.mode()));
            }
            for other in self.waiters_in_the_way(id) {
                frames.extend(self.waiters.get(&other).map(|other| other.frame));
                next.push(other);
            }
            for frame in frames {
                let root = self.session(frame);
                if sessions.insert(root) {
                    next.extend(self.waiters_of_session(root));
                }
            }
        }
        (sessions, keys)
    }

    pub(super) fn waiters_of_session(&self, root: FrameId) -> impl Iterator<Item = RequestId> + '_ {
        let frames = self.sessions.get(&root).into_iter().flat_map(|session| &session.frames);
        frames.filter_map(|frame| self.frames.get(frame)).flat_map(|f| f.waiters.iter().copied())
    }

    /// The frames that hold slots of a key, or anything that conflicts with an item of it.
    fn holders_in_the_way(&self, key: &Key, mode: Mode) -> BTreeSet<FrameId> {
        let counted = self.tree.node(key).filter(|_| mode == Mode::Counted).map(|node| &node.holds);
        let conflicting = self.tree.conflicting(key, mode).map(|(_, holds)| holds);
        let tokens = counted.into_iter().chain(conflicting).flatten();
        tokens.filter_map(|token| Some(self.hold(*token)?.frame)).collect()
    }

    /// The waiters that compete with one and go before it.
    fn waiters_in_the_way(&self, id: RequestId) -> Vec<RequestId> {
        let Some(waiter) = self.waiters.get(&id) else { return Vec::new() };
        let rank = self.rank(waiter);
        let mut ahead = BTreeSet::new();
        for item in &waiter.request.items {
            let to = std::ops::Bound::Excluded(rank);
            let from = std::ops::Bound::Unbounded;
            ahead.extend(self.tree.waiting(&item.key, item.ask.mode(), from, to));
            if item.ask.mode() == Mode::Counted {
                let here = self.tree.waiting_here(&item.key, Mode::Read);
                ahead.extend(here.take_while(|other| *other < rank));
            }
        }
        let request = |rank: super::queue::Rank| super::queue::request_at(self.rules, rank.place);
        ahead.into_iter().map(request).collect()
    }

    /// Lets those go on who are detached, but none of `frozen`, whose waiters only bar. Who is
    /// stopped takes no part here either; it is looked at when it runs again.
    pub(super) fn wake(&mut self, frozen: Option<FrameId>) {
        let ids: Vec<RequestId> = self.waiters.keys().copied().collect();
        for id in ids {
            let Some(waiter) = self.waiters.get(&id) else { continue };
            let hopeless = self.own_deadlock(&waiter.request, &self.kin(waiter.frame, None));
            if waiter.status == WaiterStatus::Suspended {
                continue;
            }
            let freezes = Some(self.session(waiter.frame)) == frozen;
            let status = if freezes { WaiterStatus::Detached } else { WaiterStatus::Active };
            self.mark_waiter(id, status);
            if hopeless.is_some() {
                // It is refused as soon as it is back.
                drop(self.remove_waiter(id));
            }
        }
    }

    /// Lets every frame end that neither waits nor encloses one that does, admits what can then
    /// be admitted, and so on; what remains waits in vain. Frames of `frozen` do not end.
    pub(super) fn reduce(&mut self, frozen: Option<FrameId>, past_own: bool) {
        let change = Change::Policy { bypass_max: self.bypass_max };
        let nothing = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
        let mut outcomes = Vec::new();
        let thought = if past_own { Thought::PastOwn } else { Thought::Plain };
        let mut turn = Turn::new(&nothing, &mut outcomes, Some(thought));
        turn.retry.extend(self.waiters.keys().copied());
        turn.grown.extend(self.waiters.values().map(|waiter| waiter.frame));
        turn.edges = true;
        self.settle(&mut turn);
        // Only a grant can let a frame end that could not end before.
        let mut moving: BTreeSet<FrameId> = self.sessions.keys().copied().collect();
        while self.end_movers(&mut turn, frozen, &moving) {
            turn.outcomes.clear();
            self.settle(&mut turn);
            let granted = turn.outcomes.iter().filter_map(|outcome| match outcome {
                Outcome::Granted(granted) => Some(self.session(granted.frame)),
                _ => None,
            });
            moving = granted.collect();
        }
    }

    /// Ends what every frame of some sessions holds that can end. Whether there was something.
    fn end_movers(
        &mut self,
        turn: &mut Turn<'_>,
        frozen: Option<FrameId>,
        sessions: &BTreeSet<FrameId>,
    ) -> bool {
        let mut tokens: Vec<Token> = Vec::new();
        for root in sessions.iter().filter(|root| Some(**root) != frozen) {
            let waiting = self.waiters_of_session(*root).filter_map(|id| self.waiters.get(&id));
            let waiting = waiting.filter(|waiter| !self.is_aside(waiter));
            let stuck: BTreeSet<FrameId> = waiting
                .flat_map(|waiter| self.enclosing(waiter.frame).map(|frame| frame.state.id))
                .collect();
            let frames = self.sessions.get(root).into_iter().flat_map(|session| &session.frames);
            let movers = frames.filter(|frame| !stuck.contains(frame));
            let movers = movers.filter_map(|frame| self.frames.get(frame));
            tokens.extend(movers.flat_map(|frame| &frame.holds));
        }
        for token in &tokens {
            self.release_whole(turn, *token);
        }
        !tokens.is_empty()
    }
}
