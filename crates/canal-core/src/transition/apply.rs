//! Applies an entry: dispatches each kind of change.

use std::collections::BTreeSet;

use super::commit::Transition;
use crate::state::locks::Misfit;
use crate::{
    CONFIRMED_TOKEN_MAX, Change, Diverged, Entry, FrameId, HoldState, HostId, Key, LeaseId, Mode,
    Outcome, Owner, Refusal, Release, RequestId, Revision, Table, Token, View, Withdrawal,
};

impl Table {
    /// Applies the next entry and appends the outcomes to `outcomes`.
    ///
    /// # Panics
    /// If `revision` is not the next one: the log has a gap.
    pub fn apply(&mut self, revision: Revision, entry: &Entry, outcomes: &mut Vec<Outcome>) {
        assert_eq!(revision.0, self.revision.0 + 1, "the log has a gap");
        self.revision = revision;
        let recovered = self.recovery.is_some();
        self.mark(entry);
        let recovered = recovered && self.recovery.is_none();
        let mut transition = Transition::new(entry, outcomes);
        match &entry.change {
            Change::Request(request) => self.decide(&mut transition, request),
            Change::Withdraw { request, why } => self.withdraw(&mut transition, *request, *why),
            Change::Release(release) => self.release(&mut transition, release),
            Change::End { frame } => self.end(&mut transition, *frame),
            Change::Renew { lease, .. } => self.renew(&mut transition, *lease),
            Change::ConfirmAt { request, token, .. } => {
                self.confirm_at(&mut transition, *request, *token);
            }
            Change::Expire { frame, renewal } => self.expire(&mut transition, *frame, *renewal),
            Change::Suspend { request } => self.suspend(&mut transition, *request),
            Change::Resume { request } => {
                transition.worklist().retry.insert(*request);
                transition.add_candidates([*request]);
                transition
                    .worklist()
                    .holdings_changed
                    .extend(self.waiters.get(request).map(|waiter| waiter.frame));
            }
            Change::Resize { key, view } => self.resize(&mut transition, key, *view),
            Change::Pause { key, .. } => self.pause(&mut transition, key),
            Change::Prioritize { session, priority } => {
                self.prioritize(&mut transition, *session, *priority);
            }
            Change::Service { key, .. } => {
                let before = self.without_of(key);
                self.change_setting_by(&mut transition, key, Outcome::ServiceStored { before });
            }
            Change::Policy { .. } => self.raise_barriers_everywhere(&mut transition),
            Change::HostGone { host, by } => self.host_gone(&mut transition, *host, *by),
            // Waiters that were suspended take part again.
            Change::Detach { .. } | Change::HostAdopt { .. } => {
                self.add_all_candidates(&mut transition);
            }
            Change::Confirm { .. }
            | Change::Floor { .. }
            | Change::HostJoin { .. }
            | Change::Era { .. }
            | Change::Present { .. }
            | Change::TtlPassed { .. }
            | Change::Checkpoint { .. } => {}
        }
        if recovered {
            self.revisit_all_waiters(&mut transition);
        }
        self.grant_ready(&mut transition);
        self.sweep(&mut transition);
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
            return Err(diverged(format!("the previous entry is missing, {}", self.revision)));
        }
        self.revision = revision;
        self.mark(entry);
        let carried_out = outcomes.iter().try_for_each(|outcome| self.carry_out(entry, outcome));
        self.bypass_exhausted.clear();
        carried_out.map_err(|error| diverged(error.0))
    }

    fn withdraw(&mut self, transition: &mut Transition<'_>, request: RequestId, why: Withdrawal) {
        if self.waiters.contains_key(&request) {
            self.commit(transition, Outcome::Withdrawn { request });
        } else if why != Withdrawal::Timeout
            && let Some(token) = self.granted.get(&request)
        {
            self.release_whole(transition, *token);
        }
    }

    fn release(&mut self, transition: &mut Transition<'_>, release: &Release) {
        let tokens: Vec<Token> = match release {
            Release::Latest { frame, key } => {
                if let Some(token) = self.latest_hold(*frame, key) {
                    return self.release_keys(transition, token, vec![key.clone()]);
                }
                Vec::new()
            }
            Release::All { frame } => self.holds_in(*frame).map(|hold| hold.token).collect(),
            Release::Hold { token, .. } => {
                self.hold(*token).map(|hold| hold.token).into_iter().collect()
            }
        };
        if tokens.is_empty() {
            return self.commit(transition, Outcome::NotHeld);
        }
        for token in tokens {
            self.release_whole(transition, token);
        }
    }

    fn end(&mut self, transition: &mut Transition<'_>, id: FrameId) {
        let Some(frame) = self.frames.get(&id) else { return };
        let (waiters, holds) = (frame.waiters.clone(), frame.holds.clone());
        transition.touched.insert(id);
        for request in waiters {
            self.commit(transition, Outcome::Withdrawn { request });
        }
        for token in holds {
            if self.holds.get(&token).is_some_and(|hold| !hold.asked.children) {
                self.release_whole(transition, token);
            }
        }
    }

    fn suspend(&mut self, transition: &mut Transition<'_>, request: RequestId) {
        if let Some(hold) = self.hold_of(request) {
            // A client releases items of a grant, or confirms a part, only after it has received
            // the grant.
            let confirmed = hold.asked.provisional && !hold.provisional;
            if hold.items.len() == hold.asked.items.len() && !hold.orphaned && !confirmed {
                let token = hold.token;
                if hold.is_unconfirmed_spare() {
                    // A spare does not wait: one entry could otherwise grant it and take it back
                    // for another waiter.
                    return self.release_whole(transition, token);
                }
                self.commit(transition, Outcome::Requeued { request, token });
            }
        } else {
            self.mark_waiter_dirty(transition, request);
        }
    }

    fn resize(&mut self, transition: &mut Transition<'_>, key: &Key, view: Option<View>) {
        let outcome = match self.bars_view(key, view) {
            Some(in_use) => Outcome::ResizeRefused { in_use },
            None if self.majority_bars_view(key, view) => Outcome::ResizeRefusedOverNodes,
            None => Outcome::Resized { before: self.stored(key) },
        };
        self.change_setting_by(transition, key, outcome);
    }

    fn pause(&mut self, transition: &mut Transition<'_>, key: &Key) {
        let unchecked: Vec<RequestId> = self.waiters_with_unchecked_size(key).collect();
        let outcome = Outcome::PauseStored { before: self.is_paused(key) };
        self.change_setting_by(transition, key, outcome);
        let still: BTreeSet<RequestId> = self.waiters_with_unchecked_size(key).collect();
        for request in unchecked.into_iter().filter(|request| !still.contains(request)) {
            let Some(waiter) = self.waiters.get(&request) else { continue };
            let misfit = self.misfit(&waiter.request, &self.lineage(waiter.frame, None));
            if let Some(Misfit::TooLarge { item, capacity }) = misfit {
                let why = Refusal::TooLarge { item, capacity };
                self.commit(transition, Outcome::Refused { request, why });
            }
        }
    }

    fn prioritize(&mut self, transition: &mut Transition<'_>, session: FrameId, priority: i32) {
        let waiters: Vec<RequestId> = self.waiters_of_session(session).collect();
        for request in waiters {
            let before = self.waiters.get(&request).map_or(priority, |it| it.request.priority);
            if before != priority {
                self.commit(transition, Outcome::Prioritized { request, before });
            }
        }
    }

    fn waiters_with_unchecked_size(&self, key: &Key) -> impl Iterator<Item = RequestId> {
        let waiters = self.served(key).into_iter();
        waiters.filter(|id| self.waiters.get(id).is_some_and(|waiter| waiter.size_unchecked))
    }

    /// Commits a change of a stored setting of a lock, and examines all its waiters again.
    fn change_setting_by(&mut self, transition: &mut Transition<'_>, key: &Key, outcome: Outcome) {
        for request in self.served(key) {
            // A waiter that this change parks lets others overtake it.
            self.mark_waiter_dirty(transition, request);
        }
        transition.mark_dirty(key, Mode::Counted);
        self.commit(transition, outcome);
        for request in self.served(key) {
            // The waiter may also have become active, and it affects all its keys.
            self.mark_waiter_dirty(transition, request);
            transition.worklist().retry.insert(request);
            transition.add_candidates([request]);
            transition
                .worklist()
                .holdings_changed
                .extend(self.waiters.get(&request).map(|waiter| waiter.frame));
        }
    }

    /// Drops the frames that have no holds, requests or child frames left.
    fn sweep(&mut self, transition: &mut Transition<'_>) {
        while let Some(id) = transition.touched.pop_last() {
            let Some(frame) = self.frames.get(&id) else { continue };
            if frame.holds.is_empty() && frame.waiters.is_empty() && frame.children == 0 {
                if let Some(parent) = frame.state.parent {
                    transition.touched.insert(parent);
                }
                self.commit(transition, Outcome::FrameGone { frame: id });
            }
        }
    }

    /// Ends everything that only the daemon of `host` kept alive, oldest frame first:
    /// - all of its processes, including holds kept for their descendants;
    /// - requests of leases, and unconfirmed grants of leases, because their clients are connected
    ///   to that daemon.
    ///
    /// Other leases move to the host `by`.
    pub(crate) fn host_gone(&mut self, transition: &mut Transition<'_>, host: HostId, by: HostId) {
        let frames: Vec<FrameId> = self.frames_of_host(host).collect();
        for id in frames {
            let Some(frame) = self.frames.get(&id) else { continue };
            transition.touched.insert(id);
            let process = matches!(frame.state.owner, Owner::Process(_));
            let (waiters, holds) = (frame.waiters.clone(), frame.holds.clone());
            for request in waiters {
                self.commit(transition, Outcome::Withdrawn { request });
            }
            for token in holds {
                if process || self.is_provisional(token) {
                    self.release_whole(transition, token);
                }
            }
            let kept = self.frames.get(&id).is_some_and(|frame| !frame.holds.is_empty());
            if !process && kept {
                self.commit(transition, Outcome::LeaseMoved { frame: id, host: by });
            }
        }
        self.add_all_candidates(transition);
    }

    fn is_provisional(&self, token: Token) -> bool {
        self.holds.get(&token).is_some_and(|hold| hold.provisional)
    }

    pub(crate) fn confirm_at(
        &mut self,
        transition: &mut Transition<'_>,
        request: RequestId,
        token: Token,
    ) {
        let hold = self.hold_of(request).filter(|hold| hold.asked.over_nodes.is_some());
        let outcome = match hold {
            None => Outcome::NotConfirmed { least: None },
            Some(hold) if self.may_have_token(hold, token) => {
                Outcome::ConfirmedAt { request, was: hold.token, token }
            }
            Some(_) => Outcome::NotConfirmed { least: Some(self.next_token) },
        };
        self.commit(transition, outcome);
    }

    /// Whether a hold may take this token. The node may meanwhile have granted it to another hold,
    /// which may still have it.
    fn may_have_token(&self, hold: &HoldState, token: Token) -> bool {
        token == hold.token
            || token > hold.token
                && token.0 <= CONFIRMED_TOKEN_MAX
                && !self.holds.contains_key(&token)
    }

    pub(crate) fn renew(&mut self, transition: &mut Transition<'_>, lease: LeaseId) {
        let frame = self.lease(lease).and_then(|id| self.frames.get(&id));
        // An unconfirmed part ends with its connection, so a client that renews it by its handle
        // must not rely on it.
        let is_collecting = |hold: &HoldState| hold.provisional && hold.asked.over_nodes.is_some();
        let holding = frame.filter(|frame| {
            let mut holds = self.holds_in(frame.state.id).peekable();
            holds.peek().is_some() && !holds.any(is_collecting)
        });
        let renewed = holding.and_then(|frame| Some((frame.state.id, frame.state.lease?.renewals)));
        let outcome = match renewed {
            Some((frame, before)) => Outcome::Renewed { frame, renewal: before + 1 },
            None => Outcome::LeaseGone,
        };
        self.commit(transition, outcome);
    }

    pub(crate) fn expire(&mut self, transition: &mut Transition<'_>, id: FrameId, renewal: u64) {
        let Some(frame) = self.frames.get(&id) else { return };
        if frame.state.lease.is_none_or(|lease| lease.renewals != renewal) {
            return;
        }
        for token in frame.holds.clone() {
            self.release_whole(transition, token);
        }
    }
}
