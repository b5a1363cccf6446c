//! Applies an entry: dispatches each kind of change.

use super::commit::{Transition, Worklist};
use crate::{
    CONFIRMED_TOKEN_MAX, Change, Diverged, Entry, FrameId, HoldState, HostId, Key, LeaseId, Mode,
    Outcome, Owner, Refusal, Release, RequestId, Revision, Setting, Table, Token,
};

impl Table {
    /// Applies the next entry and appends the outcomes to `outcomes`.
    ///
    /// # Panics
    /// If `revision` is not the next one: the log has a gap.
    pub fn apply(&mut self, revision: Revision, entry: &Entry, outcomes: &mut Vec<Outcome>) {
        assert_eq!(revision.0, self.globals.revision.0 + 1, "the log has a gap");
        self.globals.revision = revision;
        let recovers = self.globals.recovery.is_some();
        self.mark(entry);
        let has_recovered = recovers && self.globals.recovery.is_none();
        let mut transition = Transition { table: self, entry, outcomes, work: Worklist::default() };
        transition.change();
        if has_recovered {
            // Any waiter may now be grantable, or be in a deadlock.
            let waiting: Vec<RequestId> = transition.table.waiters.keys().copied().collect();
            for request in waiting {
                transition.mark_waiter_dirty(request);
                transition.revisit(request);
            }
        }
        transition.grant_ready();
        transition.sweep();
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
        let last = self.globals.revision;
        if revision.0 != last.0 + 1 {
            return Err(diverged(format!("the previous entry is missing, {last}")));
        }
        self.globals.revision = revision;
        self.mark(entry);
        let carried_out = outcomes.iter().try_for_each(|outcome| self.carry_out(entry, outcome));
        self.bypass_exhausted.clear();
        carried_out.map_err(diverged)
    }
}

impl Transition<'_> {
    /// Decides about the change of the entry.
    fn change(&mut self) {
        match &self.entry.change {
            Change::Request(request) => self.decide(request),
            Change::Withdraw { request } => self.withdraw(*request),
            Change::Release(release) => self.release(release),
            Change::End { frame } => self.empty(*frame, |hold| !hold.asked.children),
            Change::Renew { lease, .. } => self.renew(*lease),
            Change::ConfirmAt { request, token, .. } => self.confirm_at(*request, *token),
            Change::Expire { frame, renewal } => self.expire(*frame, *renewal),
            Change::Suspend { request } => self.suspend(*request),
            Change::Resume { request } => self.revisit(*request),
            Change::Set { key, setting } => self.set(key, setting),
            Change::Prioritize { session, priority } => self.prioritize(*session, *priority),
            Change::Policy { .. } => self.raise_barriers_everywhere(),
            Change::HostGone { host, by } => self.host_gone(*host, *by),
            // Waiters that were suspended take part again.
            Change::Detach { .. } | Change::HostAdopt { .. } => self.add_all_candidates(),
            Change::Confirm { .. }
            | Change::Floor { .. }
            | Change::HostJoin { .. }
            | Change::Era { .. }
            | Change::Present { .. }
            | Change::TtlPassed { .. }
            | Change::Checkpoint { .. } => {}
        }
    }

    fn withdraw(&mut self, request: RequestId) {
        if self.table.waiters.contains_key(&request) {
            self.commit(Outcome::Withdrawn { request });
        } else if let Some(token) = self.table.granted.get(&request) {
            self.release_whole(*token);
        }
    }

    fn release(&mut self, release: &Release) {
        let holds = self.table.holds_of(release);
        if holds.is_empty() {
            return self.commit(Outcome::NotHeld);
        }
        for hold in holds {
            match release {
                Release::Latest { key, .. } => self.release_keys(hold.token, vec![key.clone()]),
                Release::All { .. } | Release::Hold { .. } => self.release_whole(hold.token),
            }
        }
    }

    /// Withdraws the requests of a frame, and releases some of its holds.
    fn empty(&mut self, id: FrameId, is_released: impl Fn(&HoldState) -> bool) {
        let Some(frame) = self.table.frames.get(&id) else { return };
        let (waiters, holds) = (frame.waiters.clone(), frame.holds.clone());
        self.work.touched.insert(id);
        for request in waiters {
            self.commit(Outcome::Withdrawn { request });
        }
        for token in holds {
            if self.table.hold(token).is_some_and(&is_released) {
                self.release_whole(token);
            }
        }
    }

    /// Ends everything that only the daemon of `host` kept alive, oldest frame first:
    /// - all of its processes, including holds kept for their descendants;
    /// - requests of leases, and unconfirmed grants of leases, because their clients are connected
    ///   to that daemon.
    ///
    /// Other leases move to the host `by`.
    fn host_gone(&mut self, host: HostId, by: HostId) {
        let frames: Vec<FrameId> = self.table.frames_of_host(host).collect();
        for frame in frames {
            let Some(state) = self.table.frame(frame) else { continue };
            let is_process = matches!(state.owner, Owner::Process(_));
            self.empty(frame, |hold| is_process || hold.provisional);
            if !is_process && self.table.holds_in(frame).next().is_some() {
                self.commit(Outcome::LeaseMoved { frame, host: by });
            }
        }
        self.add_all_candidates();
    }

    fn confirm_at(&mut self, request: RequestId, token: Token) {
        let hold = self.table.hold_of(request).filter(|hold| hold.asked.over_nodes.is_some());
        // The node may meanwhile have granted the token to another hold, which may still have it.
        let is_free = token.0 <= CONFIRMED_TOKEN_MAX && self.table.hold(token).is_none();
        self.commit(match hold {
            None => Outcome::NotConfirmed { least: None },
            Some(hold) if token == hold.token || token > hold.token && is_free => {
                Outcome::ConfirmedAt { request, was: hold.token, token }
            }
            Some(_) => Outcome::NotConfirmed { least: Some(self.table.globals.next_token) },
        });
    }

    fn renew(&mut self, lease: LeaseId) {
        let frame = self.table.lease(lease).and_then(|frame| self.table.frame(frame));
        // An unconfirmed part ends with its connection, so a client that renews it by its handle
        // must not rely on it.
        let holding = frame.filter(|frame| {
            let mut holds = self.table.holds_in(frame.id).peekable();
            holds.peek().is_some() && !holds.any(HoldState::is_collecting)
        });
        let renewed = holding.and_then(|frame| Some((frame.id, frame.lease?.renewals)));
        self.commit(match renewed {
            Some((frame, before)) => Outcome::Renewed { frame, renewal: before + 1 },
            None => Outcome::LeaseGone,
        });
    }

    fn expire(&mut self, id: FrameId, renewal: u64) {
        let Some(frame) = self.table.frames.get(&id) else { return };
        if frame.state.lease.is_none_or(|lease| lease.renewals != renewal) {
            return;
        }
        for token in frame.holds.clone() {
            self.release_whole(token);
        }
    }

    fn suspend(&mut self, request: RequestId) {
        let Some(hold) = self.table.hold_of(request) else {
            return self.mark_waiter_dirty(request);
        };
        // A client releases items of a grant, or confirms a part, only after it has received the
        // grant.
        let is_confirmed = hold.asked.provisional && !hold.provisional;
        if hold.items.len() != hold.asked.items.len() || hold.orphaned || is_confirmed {
            return;
        }
        let token = hold.token;
        if hold.is_unconfirmed_spare() {
            // A spare does not wait: one entry could otherwise grant it and take it back for
            // another waiter.
            return self.release_whole(token);
        }
        self.commit(Outcome::Requeued { request, token });
    }

    /// Changes a stored setting of a lock, and examines all its waiters again.
    fn set(&mut self, key: &Key, setting: &Setting) {
        let view = if let Setting::View(view) = setting { *view } else { None };
        let stored = || Outcome::Stored { before: self.table.settings(key).view };
        let outcome = self.table.refusal_of_view(key, view).unwrap_or_else(stored);
        let mut unchecked = self.table.served(key);
        let waiters = &self.table.waiters;
        unchecked.retain(|id| waiters.get(id).is_some_and(|waiter| waiter.size_unchecked));
        for request in self.table.served(key) {
            // A waiter that this change parks lets others overtake it.
            self.mark_waiter_dirty(request);
        }
        self.work.mark_dirty(key, Mode::Counted);
        self.commit(outcome);
        for request in self.table.served(key) {
            // The waiter may also have become active, and it affects all its keys.
            self.mark_waiter_dirty(request);
            self.revisit(request);
        }
        for request in unchecked {
            let waiter = self.table.waiters.get(&request);
            let Some(waiter) = waiter.filter(|waiter| !waiter.size_unchecked) else { continue };
            let misfit = self.table.misfit(&self.table.contender(waiter));
            if let Some(why @ Refusal::TooLarge { .. }) = misfit {
                self.commit(Outcome::Refused { request, why });
            }
        }
    }

    fn prioritize(&mut self, session: FrameId, priority: i32) {
        let waiters: Vec<RequestId> = self.table.waiters_of_session(session).collect();
        for request in waiters {
            let waiter = self.table.waiters.get(&request);
            let before = waiter.map_or(priority, |waiter| waiter.request.priority);
            if before != priority {
                self.commit(Outcome::Prioritized { request, before });
            }
        }
    }

    /// Drops the frames that have no holds, requests or child frames left.
    fn sweep(&mut self) {
        while let Some(id) = self.work.touched.pop_last() {
            let Some(frame) = self.table.frames.get(&id) else { continue };
            if frame.holds.is_empty() && frame.waiters.is_empty() && frame.children == 0 {
                self.work.touched.extend(frame.state.parent);
                self.commit(Outcome::FrameGone { frame: id });
            }
        }
    }
}
