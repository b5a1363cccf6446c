//! Commits an outcome: records it, carries it out, and notes what it may affect.
//!
//! Deciding and replaying share the code that carries outcomes out. `Table::apply` records each
//! decision as an [`Outcome`] and carries it out with [`Table::carry_out`]. `Table::replay` carries
//! out recorded outcomes and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::InvalidOutcome;
use crate::{
    Change, Entry, FrameId, Granted, Key, Mode, Outcome, RequestId, Table, Token, WaiterState,
    WaiterStatus,
};

/// The application of one entry.
pub(crate) struct Transition<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) outcomes: &'a mut Vec<Outcome>,
    /// Frames that lost a hold or a request, and may be empty.
    pub(crate) touched: BTreeSet<FrameId>,
    /// `None` while it is empty, so that a table without waiters never allocates it.
    worklist: Option<Box<Worklist>>,
}

/// Everything that the outcomes so far may affect.
#[derive(Default)]
pub(crate) struct Worklist {
    /// Keys at which a hold or a request ended, and whether a write was among them.
    pub(crate) dirty: BTreeMap<Key, bool>,
    /// Waiters to try again regardless of their keys.
    pub(crate) retry: BTreeSet<RequestId>,
    /// All keys that were dirty since the last pass without a grant.
    pub(crate) changed_keys: BTreeSet<Key>,
    /// Frames whose holds changed. Their requests, and those of frames inside them, may now share
    /// slots, or deadlock with themselves.
    pub(crate) holdings_changed: BTreeSet<FrameId>,
    /// Waiters that may wait for more than before, or block more than before. A request that waits
    /// for one of them may now wait for everything that this one can reach.
    pub(crate) new_waits: BTreeSet<RequestId>,
    /// Waiters whose wait for a hold may have closed a cycle.
    pub(crate) deadlock_candidates: BTreeSet<RequestId>,
}

impl<'a> Transition<'a> {
    pub(crate) fn new(entry: &'a Entry, outcomes: &'a mut Vec<Outcome>) -> Self {
        Self { entry, outcomes, touched: BTreeSet::default(), worklist: None }
    }

    /// The work that remains.
    pub(crate) fn worklist(&mut self) -> &mut Worklist {
        self.worklist.get_or_insert_default()
    }

    /// Records that a hold or a request of a mode ended at a key.
    pub(crate) fn mark_dirty(&mut self, key: &Key, mode: Mode) {
        *self.worklist().dirty.entry(key.clone()).or_default() |= mode == Mode::Write;
    }

    /// Records waiters that may wait for more than before.
    pub(crate) fn add_candidates(&mut self, waiters: impl IntoIterator<Item = RequestId>) {
        let worklist = self.worklist();
        for waiter in waiters {
            worklist.new_waits.insert(waiter);
            worklist.deadlock_candidates.insert(waiter);
        }
    }
}

impl Table {
    /// Records an outcome and carries it out.
    pub(crate) fn commit(&mut self, transition: &mut Transition<'_>, outcome: Outcome) {
        self.before_change(transition, &outcome);
        if let Err(error) = self.carry_out(transition.entry, &outcome) {
            // The table can carry out every outcome that it decides. A failure is a defect, and the
            // log must not grow beyond it.
            panic!("the table cannot carry out its own decision {outcome:?}: {error}");
        }
        match &outcome {
            Outcome::Granted(granted) => self.after_grant(transition, granted),
            Outcome::Queued { request, .. } => transition.add_candidates([*request]),
            Outcome::Prioritized { request, .. } => {
                // It may now precede others, or others may precede it.
                self.mark_waiter_dirty(transition, *request);
                transition.worklist().retry.insert(*request);
                transition.add_candidates([*request]);
            }
            Outcome::Released { frame, keys, .. } => self.after_release(transition, *frame, keys),
            Outcome::Requeued { request, .. } => {
                self.mark_waiter_dirty(transition, *request);
                if let Some(waiter) = self.waiters.get(request) {
                    let keys = waiter.request.items.iter().map(|item| item.key.clone());
                    self.after_release(transition, waiter.frame, &keys.collect::<Vec<_>>());
                }
            }
            _ => {}
        }
        transition.outcomes.push(outcome);
    }

    /// Adds everything that an outcome can affect to the worklist. Called before the outcome is
    /// carried out, while the hold or request that it ends still exists.
    fn before_change(&self, transition: &mut Transition<'_>, outcome: &Outcome) {
        match outcome {
            Outcome::Refused { request, .. } | Outcome::Withdrawn { request } => {
                self.mark_waiter_dirty(transition, *request);
            }
            Outcome::Barrier { request } => {
                transition.worklist().retry.insert(*request);
                transition.worklist().new_waits.insert(*request);
            }
            Outcome::Granted(granted) => self.mark_waiter_dirty(transition, granted.request),
            Outcome::Released { token, keys, frame, .. } => {
                transition.touched.insert(*frame);
                if self.waiters.is_empty() {
                    return;
                }
                let items = self.holds.get(token).into_iter().flat_map(|hold| &hold.items);
                for item in items.filter(|item| keys.contains(&item.key)) {
                    transition.mark_dirty(&item.key, item.mode);
                }
            }
            _ => {}
        }
    }

    fn after_grant(&mut self, transition: &mut Transition<'_>, granted: &Granted) {
        if self.waiters.is_empty() {
            // Nothing to add: without waiters, no request can be affected, and a frame with a hold
            // is not dropped.
            return;
        }
        if let Some(hold) = self.holds.get(&granted.token) {
            // A grant can fill a smaller view, so that a larger view may overtake it.
            for item in hold.items.iter().filter(|item| item.mode == Mode::Counted) {
                transition.mark_dirty(&item.key, item.mode);
            }
        }
        transition.touched.insert(granted.frame);
        transition.worklist().holdings_changed.insert(granted.frame);
        transition.add_candidates(self.waiters_of_session(self.session(granted.frame)));
    }

    /// Other frames of the session may have shared the released slots, and may now have to wait for
    /// more.
    fn after_release(&self, transition: &mut Transition<'_>, frame: FrameId, keys: &[Key]) {
        let session = self.session(frame);
        if self.sessions.get(&session).is_none_or(|session| session.waiters == 0) {
            return;
        }
        transition.add_candidates(self.waiters_of_session(session));
        transition.worklist().holdings_changed.insert(frame);
        // Another frame of the session may have inherited the slots.
        let frames = self.sessions.get(&session).into_iter().flat_map(|session| &session.frames);
        transition.worklist().holdings_changed.extend(frames.copied().filter(|frame| {
            let shares = self.frames.get(frame).map(|frame| &frame.shares);
            shares.is_some_and(|shares| keys.iter().any(|key| shares.contains_key(key)))
        }));
    }

    /// Marks the keys of a waiter dirty: other waiters, or this one, may now be admitted there.
    pub(crate) fn mark_waiter_dirty(&self, transition: &mut Transition<'_>, request: RequestId) {
        if let Some(waiter) = self.waiters.get(&request) {
            for item in &waiter.request.items {
                transition.mark_dirty(&item.key, item.ask.mode());
            }
            transition.touched.insert(waiter.frame);
        }
    }

    /// Every waiter may now wait for a different session, or deadlock with itself.
    pub(crate) fn add_all_candidates(&self, transition: &mut Transition<'_>) {
        transition.add_candidates(self.waiters.keys().copied());
        transition
            .worklist()
            .holdings_changed
            .extend(self.waiters.values().map(|waiter| waiter.frame));
    }

    pub(crate) fn release_whole(&mut self, transition: &mut Transition<'_>, token: Token) {
        let Some(hold) = self.holds.get(&token) else { return };
        let keys = hold.items.iter().map(|item| item.key.clone()).collect();
        self.release_keys(transition, token, keys);
    }

    pub(crate) fn release_keys(
        &mut self,
        transition: &mut Transition<'_>,
        token: Token,
        keys: Vec<Key>,
    ) {
        let Some(hold) = self.holds.get(&token) else { return };
        let (frame, request) = (hold.frame, hold.request);
        let whole = keys.len() == hold.items.len();
        self.commit(transition, Outcome::Released { token, frame, request, keys, whole });
    }

    /// Carries out one outcome of `entry`, which is applied at the table's current revision.
    pub(crate) fn carry_out(
        &mut self,
        entry: &Entry,
        outcome: &Outcome,
    ) -> Result<(), InvalidOutcome> {
        match outcome {
            Outcome::Queued { request, frame } => self.queue_up(entry, *request, *frame),
            Outcome::Granted(granted) => {
                let passed = self.passed_by(entry, granted)?;
                self.grant(entry, granted)?;
                self.count_pass(passed);
                Ok(())
            }
            Outcome::Refused { request, why } => {
                if self.waiters.contains_key(request) {
                    let waiter = self.remove_waiter(*request)?;
                    self.remember_superseded(waiter.request.tag, why);
                }
                Ok(())
            }
            Outcome::Withdrawn { request } => self.remove_waiter(*request).map(drop),
            Outcome::Released { token, keys, whole, .. } => {
                if *whole {
                    self.remember_lease(entry, *token);
                }
                self.give_back(*token, keys)
            }
            Outcome::Requeued { request, token } => self.revoke(*request, *token),
            Outcome::Barrier { request } => self.raise_barrier(*request),
            Outcome::Prioritized { request, .. } => self.prioritized(entry, *request),
            Outcome::Resized { .. } => self.store_view(entry),
            Outcome::PauseStored { .. } => self.store_pause(entry),
            Outcome::ServiceStored { .. } => self.store_service(entry),
            Outcome::FrameGone { frame } => self.drop_frame(*frame),
            Outcome::Renewed { frame, renewal } => self.renewed(entry, *frame, *renewal),
            Outcome::ConfirmedAt { was, token, .. } => self.confirmed_at(entry, *was, *token),
            Outcome::LeaseMoved { frame, host } => self.lease_moved(*frame, *host),
            Outcome::NotHeld
            | Outcome::LeaseGone
            | Outcome::NotConfirmed { .. }
            | Outcome::ResizeRefused { .. }
            | Outcome::ResizeRefusedOverNodes => Ok(()),
        }
    }

    /// Applies the changes of an entry that need no decision: flags of the things that it names.
    pub(crate) fn mark(&mut self, entry: &Entry) {
        match &entry.change {
            Change::Confirm { request } => {
                let token = self.granted.get(request);
                if let Some(hold) = token.and_then(|token| self.holds.get_mut(token))
                    && hold.asked.over_nodes.is_none()
                {
                    Arc::make_mut(hold).provisional = false;
                }
            }
            Change::End { frame } => self.mark_ended(*frame),
            Change::Suspend { request } => self.mark_waiter(*request, WaiterStatus::Suspended),
            Change::Resume { request } => self.mark_waiter(*request, WaiterStatus::Active),
            Change::Detach { host } => {
                let on_host = |waiter: &&WaiterState| waiter.request.host == *host;
                let ids: Vec<_> = self.waiters().filter(on_host).map(|waiter| waiter.id).collect();
                for id in ids {
                    self.mark_waiter(id, WaiterStatus::Detached);
                }
            }
            Change::HostJoin { .. } | Change::HostGone { .. } | Change::HostAdopt { .. } => {
                self.mark_hosts(entry);
                self.mark_recovery(entry);
            }
            Change::Era { .. } | Change::Present { .. } | Change::TtlPassed { .. } => {
                self.mark_recovery(entry);
            }
            Change::Policy { bypass_max } => self.bypass_max = (*bypass_max).max(1),
            Change::Floor { token } => self.next_token = self.next_token.max(*token),
            Change::Request(_)
            | Change::ConfirmAt { .. }
            | Change::Withdraw { .. }
            | Change::Renew { .. }
            | Change::Expire { .. }
            | Change::Checkpoint { .. }
            | Change::Release(_)
            | Change::Resize { .. }
            | Change::Pause { .. }
            | Change::Prioritize { .. }
            | Change::Service { .. } => {}
        }
    }
}
