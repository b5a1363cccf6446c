//! Recording and carrying out a decision, and noting whom it concerns.

use super::worklist::Turn;
use crate::core::{FrameId, Granted, Key, Mode, Outcome, RequestId, Table};

impl Table {
    /// Records a decision and carries it out.
    pub(in crate::core) fn decide(&mut self, turn: &mut Turn<'_>, outcome: Outcome) {
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
    pub(in crate::core) fn dirty_waiter(&self, turn: &mut Turn<'_>, request: RequestId) {
        if let Some(waiter) = self.waiters.get(&request) {
            for item in &waiter.request.items {
                turn.soil(&item.key, item.ask.mode());
            }
            turn.touched.insert(waiter.frame);
        }
    }

    /// Anybody may now wait for somebody whom they did not wait for before, or for themselves.
    pub(in crate::core) fn suspect_everyone(&self, turn: &mut Turn<'_>) {
        turn.suspect(self.waiters.keys().copied());
        turn.concerned().grown.extend(self.waiters.values().map(|waiter| waiter.frame));
    }
}
