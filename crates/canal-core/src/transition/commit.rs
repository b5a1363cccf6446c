//! Commits an outcome: records it, carries it out, and notes what it may affect.
//!
//! Deciding and replaying share the code that carries outcomes out. `Table::apply` records each
//! decision as an [`Outcome`] and carries it out with [`Table::carry_out`]. `Table::replay` carries
//! out recorded outcomes and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{
    Change, Entry, FrameId, Granted, Key, Mode, Outcome, RequestId, Result, Table, Token,
    WaiterState, WaiterStatus,
};

/// The application of one entry.
pub(crate) struct Transition<'a> {
    pub(crate) table: &'a mut Table,
    pub(crate) entry: &'a Entry,
    pub(crate) outcomes: &'a mut Vec<Outcome>,
    pub(crate) work: Worklist,
}

/// Everything that the outcomes so far may affect.
#[derive(Default)]
pub(crate) struct Worklist {
    /// Frames that lost a hold or a request, and may be empty.
    pub(crate) touched: BTreeSet<FrameId>,
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

impl Worklist {
    /// Records that a hold or a request of a mode ended at a key.
    pub(crate) fn mark_dirty(&mut self, key: &Key, mode: Mode) {
        *self.dirty.entry(key.clone()).or_default() |= mode == Mode::Write;
    }

    /// Records waiters that may wait for more than before.
    pub(crate) fn add_candidates(&mut self, waiters: impl Iterator<Item = RequestId>) {
        for waiter in waiters {
            self.new_waits.insert(waiter);
            self.deadlock_candidates.insert(waiter);
        }
    }

    /// Records a waiter that may now be granted, or wait for more than before.
    pub(crate) fn revisit(&mut self, waiter: RequestId) {
        self.retry.insert(waiter);
        self.add_candidates([waiter].into_iter());
    }
}

impl Transition<'_> {
    /// Records an outcome and carries it out.
    pub(crate) fn commit(&mut self, outcome: Outcome) {
        self.before_change(&outcome);
        if let Err(error) = self.table.carry_out(self.entry, &outcome) {
            // The table can carry out every outcome that it decides. A failure is a defect, and the
            // log must not grow beyond it.
            panic!("the table cannot carry out its own decision {outcome:?}: {error}");
        }
        match &outcome {
            Outcome::Granted(granted) => self.after_grant(granted),
            Outcome::Queued { request, .. } => self.work.add_candidates([*request].into_iter()),
            Outcome::Prioritized { request, .. } => {
                // It may now precede others, or others may precede it.
                self.mark_waiter_dirty(*request);
                self.work.revisit(*request);
            }
            Outcome::Released { frame, keys, .. } => self.after_release(*frame, keys),
            Outcome::Requeued { request, .. } => {
                self.mark_waiter_dirty(*request);
                if let Some(waiter) = self.table.waiters.get(request) {
                    let keys = waiter.request.items.iter().map(|item| item.key.clone());
                    self.after_release(waiter.frame, &keys.collect::<Vec<_>>());
                }
            }
            _ => {}
        }
        self.outcomes.push(outcome);
    }

    /// Adds everything that an outcome can affect to the worklist. Called before the outcome is
    /// carried out, while the hold or request that it ends still exists.
    fn before_change(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Refused { request, .. }
            | Outcome::Withdrawn { request }
            | Outcome::Granted(Granted { request, .. }) => self.mark_waiter_dirty(*request),
            Outcome::Barrier { request } => {
                self.work.retry.insert(*request);
                self.work.new_waits.insert(*request);
            }
            Outcome::Released { token, keys, frame, .. } => {
                self.work.touched.insert(*frame);
                if self.table.waiters.is_empty() {
                    return;
                }
                let items = self.table.holds.get(token).into_iter().flat_map(|hold| &hold.items);
                for item in items.filter(|item| keys.contains(&item.key)) {
                    self.work.mark_dirty(&item.key, item.mode);
                }
            }
            _ => {}
        }
    }

    fn after_grant(&mut self, granted: &Granted) {
        let table = &*self.table;
        if table.waiters.is_empty() {
            // Nothing to add: without waiters, no request can be affected, and a frame with a hold
            // is not dropped.
            return;
        }
        if let Some(hold) = table.holds.get(&granted.token) {
            // A grant can fill a smaller view, so that a larger view may overtake it.
            for item in hold.items.iter().filter(|item| item.mode == Mode::Counted) {
                self.work.mark_dirty(&item.key, item.mode);
            }
        }
        self.work.touched.insert(granted.frame);
        self.work.holdings_changed.insert(granted.frame);
        self.work.add_candidates(table.waiters_of_session(table.session(granted.frame)));
    }

    /// Other frames of the session may have shared the released slots, and may now have to wait for
    /// more.
    fn after_release(&mut self, frame: FrameId, keys: &[Key]) {
        let session = self.table.session(frame);
        if self.table.sessions.get(&session).is_none_or(|session| session.waiters == 0) {
            return;
        }
        self.work.add_candidates(self.table.waiters_of_session(session));
        self.work.holdings_changed.insert(frame);
        // Another frame of the session may have inherited the slots.
        let heirs = self.table.frames_of_session(session);
        let heirs = heirs.filter(|heir| keys.iter().any(|key| heir.shares.contains_key(key)));
        self.work.holdings_changed.extend(heirs.map(|heir| heir.state.id));
    }

    /// Marks the keys of a waiter dirty: other waiters, or this one, may now be admitted there.
    pub(crate) fn mark_waiter_dirty(&mut self, request: RequestId) {
        let Some(waiter) = self.table.waiters.get(&request) else { return };
        for item in &waiter.request.items {
            self.work.mark_dirty(&item.key, item.ask.mode());
        }
        self.work.touched.insert(waiter.frame);
    }

    /// Examines a waiter again that may have become active, or may now share slots.
    pub(crate) fn revisit(&mut self, request: RequestId) {
        self.work.revisit(request);
        let waiter = self.table.waiters.get(&request);
        self.work.holdings_changed.extend(waiter.map(|waiter| waiter.frame));
    }

    /// Every waiter may now wait for a different session, or deadlock with itself.
    pub(crate) fn add_all_candidates(&mut self) {
        let waiters = &self.table.waiters;
        self.work.add_candidates(waiters.keys().copied());
        self.work.holdings_changed.extend(waiters.values().map(|waiter| waiter.frame));
    }

    pub(crate) fn release_whole(&mut self, token: Token) {
        if let Some(hold) = self.table.holds.get(&token) {
            self.release_keys(token, hold.keys());
        }
    }

    pub(crate) fn release_keys(&mut self, token: Token, keys: Vec<Key>) {
        let Some(hold) = self.table.holds.get(&token) else { return };
        let (frame, request) = (hold.frame, hold.request);
        let whole = keys.len() == hold.items.len();
        self.commit(Outcome::Released { token, frame, request, keys, whole });
    }
}

impl Table {
    /// Carries out one outcome of `entry`, which is applied at the table's current revision.
    pub(crate) fn carry_out(&mut self, entry: &Entry, outcome: &Outcome) -> Result {
        match (outcome, &entry.change) {
            (Outcome::Queued { request, frame }, _) => self.queue_up(entry, *request, *frame)?,
            (Outcome::Granted(granted), _) => {
                let passed = self.passed_by(entry, granted)?;
                self.grant(entry, granted)?;
                self.count_pass(passed);
            }
            (Outcome::Refused { request, why }, _) => {
                if self.waiters.contains_key(request) {
                    let waiter = self.remove_waiter(*request)?;
                    self.remember_superseded(waiter.request.tag, why);
                }
            }
            (Outcome::Withdrawn { request }, _) => drop(self.remove_waiter(*request)?),
            (Outcome::Released { token, keys, whole, .. }, _) => {
                if *whole {
                    self.remember_lease(entry, *token);
                }
                self.give_back(*token, keys)?;
            }
            (Outcome::Requeued { request, token }, _) => self.revoke(*request, *token)?,
            (Outcome::Barrier { request }, _) => {
                self.requeue(*request, |waiter| waiter.barrier = true)?;
            }
            (Outcome::Prioritized { request, .. }, Change::Prioritize { priority, .. }) => {
                self.requeue(*request, |waiter| {
                    Arc::make_mut(&mut waiter.request).priority = *priority;
                })?;
            }
            (Outcome::Stored { .. }, Change::Set { key, setting }) => {
                self.change_setting(key, setting);
            }
            (Outcome::FrameGone { frame }, _) => self.drop_frame(*frame)?,
            (Outcome::Renewed { frame, renewal }, Change::Renew { .. }) => {
                self.renewed(*frame, *renewal, entry)?;
            }
            (Outcome::ConfirmedAt { was, token, .. }, Change::ConfirmAt { note, .. }) => {
                self.confirm_at(*was, *token, note.as_deref())?;
            }
            (Outcome::LeaseMoved { frame, host }, _) => self.frame_mut(*frame)?.state.host = *host,
            (
                Outcome::NotHeld
                | Outcome::LeaseGone
                | Outcome::NotConfirmed { .. }
                | Outcome::ResizeRefused { .. }
                | Outcome::ResizeRefusedOverNodes,
                _,
            ) => {}
            _ => return Err("it is the outcome of an entry of another kind".to_owned()),
        }
        Ok(())
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
            Change::Policy { bypass_max } => self.globals.bypass_max = (*bypass_max).max(1),
            Change::Floor { token } => {
                self.globals.next_token = self.globals.next_token.max(*token);
            }
            _ => {
                self.mark_hosts(entry);
                self.globals.mark_recovery(entry);
            }
        }
    }
}
