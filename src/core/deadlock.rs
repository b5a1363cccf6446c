//! Finding deadlocks, and whom to refuse.
//!
//! Detection is a reduction with the rules by which the table really admits: in the part of it
//! that a suspect can reach, let every frame end that can, admit what then can be admitted, and
//! repeat. What remains is deadlocked. Counted items and bars are inside it by construction.
//!
//! Known gap: where one process has several requests, or frames are nested, a request that is sure
//! to be refused as a deadlock with itself can hide a ring, and the victim can be one that helps
//! nobody. Long runs of the random histories (`PROPTEST_CASES=20000`) show it.

use std::collections::{BTreeMap, BTreeSet};

use super::apply::Turn;
use super::table::Session;
use super::{By, CycleStep, FrameId, Mode, Outcome, Refusal, RequestId, Table, Token};

impl Table {
    /// Refuses one request if there is a deadlock among the suspects. Whether there was one.
    pub(super) fn break_deadlock(&mut self, turn: &mut Turn<'_>) -> bool {
        while let Some(suspect) = turn.suspects.first().copied() {
            let victim = self.is_suspect(suspect).then(|| self.victim(suspect)).flatten();
            let Some((request, cycle)) = victim else {
                turn.suspects.remove(&suspect);
                continue;
            };
            let why = Refusal::Deadlock { cycle };
            self.decide(turn, Outcome::Refused { request, why });
            return true;
        }
        false
    }

    /// Only who holds something can be waited for. A session that holds nothing and has several
    /// requests is looked at when one of them is granted and another stays.
    fn is_suspect(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let session = self.session(waiter.frame);
        self.entangled.contains(&session) && !self.parked(waiter) && self.is_awaited(session)
    }

    /// Whether somebody wants what a session holds, or stands behind one of its requests: nobody
    /// else is on a cycle. Costs what the session has, not who waits.
    fn is_awaited(&self, session: FrameId) -> bool {
        let frames = self.sessions.get(&session).into_iter().flat_map(|session| &session.frames);
        frames.filter_map(|frame| self.frames.get(frame)).any(|frame| {
            let mut keys = frame.shares.keys();
            keys.any(|key| self.tree.last_competing(key, Mode::Write).is_some())
                || frame.waiters.iter().any(|request| self.goes_before_others(*request))
        })
    }

    /// Whom to refuse so that the deadlock that a suspect is in or behind is broken, and the cycle.
    fn victim(&self, suspect: RequestId) -> Option<(RequestId, Vec<CycleStep>)> {
        let mut rest = self.part(std::iter::once(suspect));
        if !rest.can_be_deadlocked() {
            return None;
        }
        rest.wake(None);
        rest.reduce(None, true);
        let stuck = rest.waiters.values().filter(|waiter| !rest.is_aside(waiter)).count();
        if stuck == 0 {
            return None;
        }
        let steps = rest.steps();
        // The youngest session first, and of its requests the latest.
        let mut waiting: Vec<(FrameId, RequestId)> =
            rest.waiters.values().map(|waiter| (rest.session(waiter.frame), waiter.id)).collect();
        waiting.sort_unstable_by(|one, other| other.cmp(one));
        let mut first = None;
        for (_, request) in waiting {
            let Some(cycle) = rest.cycle(&steps, request) else { continue };
            if rest.refusal_helps(request, stuck) {
                return Some((request, self.real(cycle)));
            }
            first = first.or(Some((request, cycle)));
        }
        first.map(|(request, cycle)| (request, self.real(cycle)))
    }

    fn can_be_deadlocked(&self) -> bool {
        let several = |session: &Session| session.waiters > 1;
        let closing = self.sessions.values().filter(|session| session.can_close_a_cycle()).count();
        closing > 1 || self.sessions.values().any(several)
    }

    /// Whether another of the `stuck` requests can go on if this one is refused.
    fn refusal_helps(&self, request: RequestId, stuck: usize) -> bool {
        let mut without = self.clone();
        if without.remove_waiter(request).is_err() {
            return false;
        }
        without.reduce(None, true);
        let left = without.waiters.values().filter(|waiter| !without.is_aside(waiter)).count();
        left + 1 < stuck
    }

    /// What each frame waits for, but for its own earlier requests.
    fn steps(&self) -> Steps {
        let mut steps = Steps::new();
        for waiter in self.waiters.values().filter(|waiter| !self.is_aside(waiter)) {
            let frame = waiter.frame;
            let others = self.blockers(waiter.id).into_iter();
            let others = others.filter(|blocker| blocker.by.frame() != frame);
            steps.entry(frame).or_default().extend(others.map(|blocker| CycleStep {
                request: waiter.id,
                frame,
                item: blocker.item,
                key: blocker.key,
                by: blocker.by,
            }));
        }
        steps
    }

    /// A shortest way from a request back to its frame, if it is on a cycle. A frame that is in
    /// the way ends only after those inside it, so the way goes on from any of them.
    fn cycle(&self, steps: &Steps, request: RequestId) -> Option<Vec<CycleStep>> {
        let start = self.waiters.get(&request)?.frame;
        let first = steps.get(&start)?.iter().filter(|step| step.request == request);
        // Each step taken, with the one before it.
        let mut taken: Vec<(&CycleStep, Option<usize>)> = first.map(|step| (step, None)).collect();
        let mut seen = BTreeSet::new();
        let mut at = 0;
        while let Some((step, _)) = taken.get(at).copied() {
            let blocker = step.by.frame();
            if self.encloses(blocker, start) {
                let back = std::iter::successors(Some(at), |at| taken.get(*at)?.1);
                let mut way: Vec<CycleStep> =
                    back.filter_map(|at| taken.get(at)).map(|(step, _)| (*step).clone()).collect();
                way.reverse();
                return Some(way);
            }
            if seen.insert(blocker) {
                let session = self.sessions.get(&self.session(blocker));
                let frames = session.into_iter().flat_map(|session| &session.frames);
                let inside = frames.filter(|frame| self.encloses(blocker, **frame));
                let next = inside.filter_map(|frame| steps.get(frame)).flatten();
                taken.extend(next.map(|step| (step, Some(at))));
            }
            at += 1;
        }
        None
    }

    fn encloses(&self, outer: FrameId, inner: FrameId) -> bool {
        self.enclosing(inner).any(|frame| frame.state.id == outer)
    }

    /// The cycle in terms of this table: what was granted in thought only still waits here.
    fn real(&self, cycle: Vec<CycleStep>) -> Vec<CycleStep> {
        let thought = |token: Token| token >= self.next_token;
        let steps = cycle.into_iter().map(|step| match step.by {
            By::Hold(token, frame) if thought(token) => {
                let waiter = self.frames.get(&frame).and_then(|frame| frame.waiters.first());
                let by = waiter.map_or(step.by, |waiter| By::Waiter(*waiter, frame));
                CycleStep { by, ..step }
            }
            _ => step,
        });
        steps.collect()
    }
}

impl Session {
    /// Whether others can wait for it while it waits itself, now or after a grant.
    pub(super) fn can_close_a_cycle(&self) -> bool {
        self.waiters > 0 && self.holds + self.waiters > 1
    }
}

/// What each frame waits for.
type Steps = BTreeMap<FrameId, Vec<CycleStep>>;
