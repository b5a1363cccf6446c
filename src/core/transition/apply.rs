//! Applying entries: what each asks of the table.

use super::worklist::Turn;
use crate::core::{
    Change, Diverged, Entry, FrameId, Key, Mode, Outcome, Release, RequestId, Revision, Table,
    Token, View, Withdrawal,
};

impl Table {
    /// Applies the next entry; what is decided is appended to `outcomes`.
    ///
    /// # Panics
    /// If `revision` is not the next one: the log has a gap.
    pub fn apply(&mut self, revision: Revision, entry: &Entry, outcomes: &mut Vec<Outcome>) {
        assert_eq!(revision.0, self.revision.0 + 1, "the log has a gap");
        self.revision = revision;
        let recovered = self.recovery.is_some();
        self.mark(entry);
        let recovered = recovered && self.recovery.is_none();
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
            | Change::Era { .. }
            | Change::Present { .. }
            | Change::TtlPassed { .. }
            | Change::Checkpoint { .. } => {}
        }
        if recovered {
            self.settle_everyone(&mut turn);
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

    pub(in crate::core) fn release_whole(&mut self, turn: &mut Turn<'_>, token: Token) {
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
        let (waiters, holds) = (frame.waiters.clone(), frame.holds.clone());
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
