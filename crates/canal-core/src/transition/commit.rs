//! Commits an outcome: records it, carries it out, and adds to the worklist what it may affect.

use super::worklist::Transition;
use crate::{FrameId, Granted, Key, Mode, Outcome, RequestId, Table, Token};

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
}
