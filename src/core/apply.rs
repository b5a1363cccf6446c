//! Applying entries: what each asks of the table.

use std::collections::BTreeSet;

use super::admit::Verdict;
use super::lock::Lock;
use super::queue::{self, Rank};
use super::turn::Turn;
use super::{
    Ask, Change, Diverged, Entry, FrameId, Granted, Key, Mode, Outcome, Refusal, Release, Request,
    RequestId, Revision, Table, Token, View, Wait, Withdrawal,
};

impl Table {
    /// Applies the next entry; what is decided is appended to `outcomes`.
    ///
    /// # Panics
    /// If `revision` is not the next one: the log has a gap.
    pub fn apply(&mut self, revision: Revision, entry: &Entry, outcomes: &mut Vec<Outcome>) {
        assert_eq!(revision.0, self.revision.0 + 1, "the log has a gap");
        self.revision = revision;
        self.mark(entry);
        let mut turn = Turn::new(entry, outcomes);
        match &entry.change {
            Change::Request(request) => self.ask(&mut turn, request),
            Change::Withdraw { request, why } => self.withdraw(&mut turn, *request, *why),
            Change::Release(release) => self.release(&mut turn, release),
            Change::End { frame } => self.end(&mut turn, *frame),
            Change::Renew { lease, .. } => self.renew(&mut turn, *lease),
            Change::Expire { frame, renewal } => self.expire(&mut turn, *frame, *renewal),
            Change::Suspend { request } => self.suspend(&mut turn, *request),
            Change::Resume { request } => {
                turn.concerned().retry.insert(*request);
                turn.suspect([*request]);
                turn.concerned().grown.extend(self.waiters.get(request).map(|waiter| waiter.frame));
            }
            Change::Resize { key, view } => self.resize(&mut turn, key, *view),
            Change::Policy { .. } => self.raise_barriers_everywhere(&mut turn),
            Change::HostGone { host, by } => self.host_gone(&mut turn, *host, *by),
            // Who was stopped takes part again.
            Change::Detach { .. } | Change::HostAdopt { .. } => self.suspect_everyone(&mut turn),
            Change::Confirm { .. }
            | Change::Floor { .. }
            | Change::HostJoin { .. }
            | Change::Checkpoint { .. } => {}
        }
        self.settle(&mut turn);
        self.sweep(&mut turn);
    }

    /// Applies an entry whose outcomes are known, without deciding anything: for logs that were
    /// written under other rules.
    ///
    /// # Errors
    /// The outcomes cannot be those of this entry in this table; the table is then unusable.
    pub fn replay(
        &mut self,
        revision: Revision,
        entry: &Entry,
        outcomes: &[Outcome],
    ) -> Result<(), Diverged> {
        let diverged = |what| Diverged { revision, what };
        if revision.0 != self.revision.0 + 1 {
            return Err(diverged(format!("the entry before it is missing, {}", self.revision)));
        }
        self.revision = revision;
        self.mark(entry);
        let enacted = outcomes.iter().try_for_each(|outcome| self.enact(entry, outcome));
        self.ripe.clear();
        enacted.map_err(diverged)
    }

    /// Records a decision and carries it out.
    pub(super) fn decide(&mut self, turn: &mut Turn<'_>, outcome: Outcome) {
        self.before_change(turn, &outcome);
        if let Err(misfit) = self.enact(turn.entry, &outcome) {
            // What the table decides it can carry out; anything else is a bug that must not go on.
            panic!("the table cannot carry out its own decision {outcome:?}: {misfit}");
        }
        match &outcome {
            Outcome::Granted(granted) => self.after_grant(turn, granted),
            Outcome::Queued { request, .. } => turn.suspect([*request]),
            Outcome::Released { frame, keys, .. } => self.after_release(turn, *frame, keys),
            Outcome::Requeued { request, .. } => {
                self.dirty_waiter(turn, *request);
                if let Some(waiter) = self.waiters.get(request) {
                    let keys = waiter.request.items.iter().map(|item| item.key.clone());
                    self.after_release(turn, waiter.frame, &keys.collect::<Vec<_>>());
                }
            }
            _ => {}
        }
        turn.outcomes.push(outcome);
    }

    /// Notes whom a decision can concern, while what it ends is still there.
    fn before_change(&self, turn: &mut Turn<'_>, outcome: &Outcome) {
        match outcome {
            Outcome::Refused { request, .. } | Outcome::Withdrawn { request } => {
                self.dirty_waiter(turn, *request);
            }
            Outcome::Barrier { request } => {
                turn.concerned().retry.insert(*request);
                turn.concerned().edges.insert(*request);
            }
            Outcome::Granted(granted) => self.dirty_waiter(turn, granted.request),
            Outcome::Released { token, keys, frame, .. } => {
                turn.touched.insert(*frame);
                if self.waiters.is_empty() {
                    return;
                }
                let items = self.holds.get(token).into_iter().flat_map(|hold| &hold.items);
                for item in items.filter(|item| keys.contains(&item.key)) {
                    turn.soil(&item.key, item.mode);
                }
            }
            _ => {}
        }
    }

    fn after_grant(&mut self, turn: &mut Turn<'_>, granted: &Granted) {
        if self.waiters.is_empty() {
            // A frame that is granted something is not about to be dropped.
            return;
        }
        if let Some(hold) = self.holds.get(&granted.token) {
            // Slots that are taken can let a larger view pass one that does not fit any more.
            for item in hold.items.iter().filter(|item| item.mode == Mode::Counted) {
                turn.soil(&item.key, item.mode);
            }
        }
        turn.touched.insert(granted.frame);
        turn.concerned().grown.insert(granted.frame);
        turn.suspect(self.waiters_of_session(self.session(granted.frame)));
    }

    /// Others of the session may have shared what is gone, and wait for more now.
    fn after_release(&self, turn: &mut Turn<'_>, frame: FrameId, keys: &[Key]) {
        let session = self.session(frame);
        if self.sessions.get(&session).is_none_or(|session| session.waiters == 0) {
            return;
        }
        turn.suspect(self.waiters_of_session(session));
        turn.concerned().grown.insert(frame);
        // The slots may have gone over to another frame.
        let frames = self.sessions.get(&session).into_iter().flat_map(|session| &session.frames);
        turn.concerned().grown.extend(frames.copied().filter(|frame| {
            let shares = self.frames.get(frame).map(|frame| &frame.shares);
            shares.is_some_and(|shares| keys.iter().any(|key| shares.contains_key(key)))
        }));
    }

    /// The keys of a waiter may now admit others, or itself.
    fn dirty_waiter(&self, turn: &mut Turn<'_>, request: RequestId) {
        if let Some(waiter) = self.waiters.get(&request) {
            for item in &waiter.request.items {
                turn.soil(&item.key, item.ask.mode());
            }
            turn.touched.insert(waiter.frame);
        }
    }

    /// Whether a waiter stands before others that compete with it.
    pub(super) fn goes_before_others(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let rank = self.rank(waiter);
        let slots = self.classes(&waiter.request).any(|(_, lock, _)| lock.queue.has_behind(rank));
        let mut items = waiter.request.items.iter();
        slots || items.any(|item| self.tree.has_behind(&item.key, item.ask.mode(), rank))
    }

    fn ask(&mut self, turn: &mut Turn<'_>, asked: &Request) {
        let request = RequestId(self.revision.0);
        if let Some(why) = self.fault(asked) {
            return self.decide(turn, Outcome::Refused { request, why });
        }
        let frame = self.frame_of(asked.host, &asked.owner).unwrap_or(FrameId(self.revision.0));
        let kin = self.kin(frame, self.outer(asked));
        let rank = Rank::ordinary(asked.priority, queue::place(self.rules, request));
        let verdict = match self.verdict(asked, &kin, rank) {
            Verdict::Barred(item) => {
                self.verdict_past_own(asked, &kin, frame, rank).unwrap_or(Verdict::Barred(item))
            }
            verdict => verdict,
        };
        match verdict {
            Verdict::Grant { items, past_own } => {
                let token = self.next_token;
                self.decide(
                    turn,
                    Outcome::Granted(Granted { request, frame, token, items, past_own }),
                );
                self.raise_barriers(turn, asked);
            }
            Verdict::Full(item) | Verdict::Barred(item) if asked.wait == Wait::No => {
                self.decide(turn, Outcome::Refused { request, why: Refusal::Full { item } });
            }
            Verdict::Full(_) | Verdict::Barred(_) => {
                let outcome = match self.own_deadlock(asked, &kin) {
                    Some(item) => Outcome::Refused { request, why: Refusal::OwnDeadlock { item } },
                    None => Outcome::Queued { request, frame },
                };
                self.decide(turn, outcome);
            }
        }
    }

    /// What is wrong with a request, whoever else is there.
    fn fault(&self, asked: &Request) -> Option<Refusal> {
        if self.tagged(asked.tag).is_some() {
            return Some(Refusal::Duplicate);
        }
        if asked.items.is_empty() {
            return Some(Refusal::Invalid { item: 0 });
        }
        if let Some(why) = self.fault_of_lease(asked) {
            return Some(why);
        }
        let mut keys = BTreeSet::new();
        asked.items.iter().enumerate().find_map(|(item, wanted)| {
            if asked.items.len() > 1 && !keys.insert(&wanted.key) {
                return Some(Refusal::Invalid { item });
            }
            self.fault_of_item(item, &wanted.key, &wanted.ask)
        })
    }

    fn fault_of_item(&self, item: usize, key: &Key, ask: &Ask) -> Option<Refusal> {
        let Ask::Counted { count, view: stated } = ask else { return None };
        if *count == 0 || matches!(stated, Some(View::Canal { per: 0, .. })) {
            return Some(Refusal::Invalid { item });
        }
        let lock = self.tree.lock(key);
        let in_force = lock.and_then(Lock::kind_in_force);
        match (in_force, stated) {
            (Some(in_use), Some(stated)) if in_use != stated.kind() => {
                return Some(Refusal::Kind { item, in_use });
            }
            _ => {}
        }
        let Some(view) = Lock::view_of(lock, *stated) else {
            return in_force.map(|in_use| Refusal::Kind { item, in_use });
        };
        if let Some(View::Slots { slots }) = stated
            && *slots != view.capacity()
        {
            return Some(Refusal::Slots { item, lock: view.capacity() });
        }
        let capacity = view.capacity();
        (stated.is_some() && *count > capacity).then_some(Refusal::TooLarge { item, capacity })
    }

    fn withdraw(&mut self, turn: &mut Turn<'_>, request: RequestId, why: Withdrawal) {
        if self.waiters.contains_key(&request) {
            self.decide(turn, Outcome::Withdrawn { request });
        } else if why != Withdrawal::Timeout
            && let Some(token) = self.granted.get(&request)
        {
            self.release_whole(turn, *token);
        }
    }

    fn release(&mut self, turn: &mut Turn<'_>, release: &Release) {
        let tokens: Vec<Token> = match release {
            Release::Latest { frame, key } => {
                if let Some(token) = self.latest_hold(*frame, key) {
                    return self.release_keys(turn, token, vec![key.clone()]);
                }
                Vec::new()
            }
            Release::All { frame } => self.holds_in(*frame).map(|hold| hold.token).collect(),
            Release::Hold { token, .. } => {
                self.hold(*token).map(|hold| hold.token).into_iter().collect()
            }
        };
        if tokens.is_empty() {
            return self.decide(turn, Outcome::NotHeld);
        }
        for token in tokens {
            self.release_whole(turn, token);
        }
    }

    pub(super) fn release_whole(&mut self, turn: &mut Turn<'_>, token: Token) {
        let Some(hold) = self.holds.get(&token) else { return };
        let keys = hold.items.iter().map(|item| item.key.clone()).collect();
        self.release_keys(turn, token, keys);
    }

    fn release_keys(&mut self, turn: &mut Turn<'_>, token: Token, keys: Vec<Key>) {
        let Some(hold) = self.holds.get(&token) else { return };
        let (frame, request) = (hold.frame, hold.request);
        let whole = keys.len() == hold.items.len();
        self.decide(turn, Outcome::Released { token, frame, request, keys, whole });
    }

    fn end(&mut self, turn: &mut Turn<'_>, id: FrameId) {
        let Some(frame) = self.frames.get(&id) else { return };
        let (waiters, holds) = (frame.waiters.to_vec(), frame.holds.to_vec());
        turn.touched.insert(id);
        for request in waiters {
            self.decide(turn, Outcome::Withdrawn { request });
        }
        for token in holds {
            if self.holds.get(&token).is_some_and(|hold| !hold.asked.children) {
                self.release_whole(turn, token);
            }
        }
    }

    fn suspend(&mut self, turn: &mut Turn<'_>, request: RequestId) {
        if let Some(hold) = self.hold_of(request) {
            // Of a grant that was not told yet nothing can have been given back.
            if hold.items.len() == hold.asked.items.len() && !hold.orphaned {
                let token = hold.token;
                self.decide(turn, Outcome::Requeued { request, token });
            }
        } else {
            self.dirty_waiter(turn, request);
        }
    }

    fn resize(&mut self, turn: &mut Turn<'_>, key: &Key, view: Option<View>) {
        let lock = self.tree.lock(key);
        let in_use = lock.and_then(|lock| lock.kind);
        let outcome = match (in_use, view) {
            (Some(in_use), Some(view)) if in_use != view.kind() => {
                Outcome::ResizeRefused { in_use }
            }
            _ => Outcome::Resized { before: lock.and_then(|lock| lock.stored) },
        };
        for request in self.served(key) {
            // Who is parked by it lets others pass.
            self.dirty_waiter(turn, request);
        }
        turn.soil(key, Mode::Counted);
        self.decide(turn, outcome);
        for request in self.served(key) {
            // Whoever is parked now lets others pass, at its other keys too.
            self.dirty_waiter(turn, request);
            turn.concerned().retry.insert(request);
            turn.suspect([request]);
            turn.concerned().grown.extend(self.waiters.get(&request).map(|waiter| waiter.frame));
        }
    }

    /// Drops the frames of which nothing is left.
    fn sweep(&mut self, turn: &mut Turn<'_>) {
        while let Some(id) = turn.touched.pop_last() {
            let Some(frame) = self.frames.get(&id) else { continue };
            if frame.holds.is_empty() && frame.waiters.is_empty() && frame.children == 0 {
                if let Some(parent) = frame.state.parent {
                    turn.touched.insert(parent);
                }
                self.decide(turn, Outcome::FrameGone { frame: id });
            }
        }
    }
}
