//! Finding deadlocks, and whom to refuse.
//!
//! Detection is a reduction with the rules by which the table really admits: in the part of it
//! that the suspects can reach, let every frame end that can, admit what then can be admitted, and
//! repeat. What remains is deadlocked.
//!
//! Who goes first plays no part in it. Where nothing moves any more, whoever bars a session that
//! holds something waits for ever, and is passed ([`crate::core::admission::bypass`] is that rule); a session that
//! holds nothing keeps nobody but those behind it. So each of the sessions that remain and hold
//! something waits for what another of them holds: every deadlock has a ring of holds. And as what
//! is held only ever gets less on the way, what remains does not depend on any order.

use std::collections::{BTreeMap, BTreeSet};

use super::reachable::Edges;
use crate::core::transition::worklist::Turn;
use crate::core::{By, CycleStep, FrameId, Mode, Outcome, Refusal, RequestId, Table};

impl Table {
    /// Refuses one request if there is a deadlock among the suspects. Whether there was one.
    pub(in crate::core) fn break_deadlock(&mut self, turn: &mut Turn<'_>) -> bool {
        turn.concerned().suspects.retain(|suspect| self.is_suspect(*suspect));
        let Some((request, cycle)) = self.victim(&turn.concerned().suspects) else {
            turn.concerned().suspects.clear();
            return false;
        };
        let why = Refusal::Deadlock { cycle };
        self.decide(turn, Outcome::Refused { request, why });
        true
    }

    /// Only a session that waits and holds what somebody else wants is on a ring.
    fn is_suspect(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let session = self.session(waiter.frame);
        self.entangled.contains(&session)
            && !self.is_aside(waiter)
            && self.has_what_others_want(session)
    }

    /// Whether somebody waits near what a session holds. Costs what it has, not who waits.
    pub(in crate::core) fn has_what_others_want(&self, session: FrameId) -> bool {
        let frames = self.sessions.get(&session).into_iter().flat_map(|session| &session.frames);
        let mut keys =
            frames.filter_map(|frame| self.frames.get(frame)).flat_map(|frame| frame.shares.keys());
        keys.any(|key| self.tree.last_competing(key, Mode::Write).is_some())
    }

    /// Whom to refuse so that the deadlock that suspects are in is broken, and the cycle.
    fn victim(&self, suspects: &BTreeSet<RequestId>) -> Option<(RequestId, Vec<CycleStep>)> {
        let reach = self.reach(suspects.iter().copied(), Edges::Holds);
        if !reach.closes {
            return None;
        }
        let thought = self.part(&reach).think(Edges::Holds, None);
        let ring = Ring::new(&thought.rest);
        // The youngest session first, and of its requests the latest.
        let rest = &thought.rest;
        let mut waiting: Vec<(FrameId, RequestId)> =
            rest.waiters.values().map(|waiter| (rest.session(waiter.frame), waiter.id)).collect();
        waiting.sort_unstable_by(|one, other| other.cmp(one));
        let requests = || waiting.iter().map(|(_, request)| *request);
        let with_cycle = |request| Some((request, ring.cycle(request)?));
        let on_a_ring = |request: RequestId| ring.cycle(request).is_some();
        let helps = |request| thought.helped_by_refusal(request).into_iter().any(on_a_ring);
        let mut helpful = requests().filter(|request| helps(*request));
        helpful.find_map(with_cycle).or_else(|| requests().find_map(with_cycle))
    }
}

/// Who waits for whom among those who remain.
struct Ring<'a> {
    rest: &'a Table,
    /// Those who wait in each frame and inside it: it ends only after all of them.
    inside: BTreeMap<FrameId, Vec<RequestId>>,
}

impl<'a> Ring<'a> {
    fn new(rest: &'a Table) -> Self {
        let mut inside: BTreeMap<FrameId, Vec<RequestId>> = BTreeMap::new();
        for waiter in rest.waiters.values() {
            for frame in rest.enclosing(waiter.frame) {
                inside.entry(frame.state.id).or_default().push(waiter.id);
            }
        }
        Self { rest, inside }
    }

    /// A shortest way from a request back to it, if it is on a cycle.
    fn cycle(&self, request: RequestId) -> Option<Vec<CycleStep>> {
        // Each step taken, with the one before it.
        let first = self.steps(request).into_iter();
        let mut taken: Vec<(CycleStep, Option<usize>)> = first.map(|step| (step, None)).collect();
        let (mut seen, mut asked) = (BTreeSet::new(), BTreeSet::from([request]));
        let mut at = 0;
        while let Some((step, _)) = taken.get(at) {
            let inside = self.inside.get(&step.by.frame()).map_or(&[][..], Vec::as_slice);
            if inside.contains(&request) {
                let back = std::iter::successors(Some(at), |at| taken.get(*at)?.1);
                let mut way: Vec<CycleStep> =
                    back.filter_map(|at| taken.get(at)).map(|(step, _)| step.clone()).collect();
                way.reverse();
                return Some(way);
            }
            if seen.insert(step.by.frame()) {
                for next in inside.iter().filter(|next| asked.insert(**next)) {
                    taken.extend(self.steps(*next).into_iter().map(|step| (step, Some(at))));
                }
            }
            at += 1;
        }
        None
    }

    /// Whose holds keep a request.
    fn steps(&self, request: RequestId) -> Vec<CycleStep> {
        let Some(waiter) = self.rest.waiters.get(&request) else { return Vec::new() };
        let frame = waiter.frame;
        let kin = self.rest.kin(frame, None);
        let mut steps = Vec::new();
        for (item, wanted) in waiter.request.items.iter().enumerate() {
            let holds = self.rest.holds_in_the_way(waiter, item, &kin).into_iter();
            steps.extend(holds.filter_map(|token| {
                let by = By::Hold(token, self.rest.hold(token)?.frame);
                Some(CycleStep { request, frame, item, key: wanted.key.clone(), by })
            }));
        }
        steps
    }
}
