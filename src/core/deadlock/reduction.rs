//! Thinking ahead: everyone ends who can, and everyone is admitted who then can be.
//!
//! What is admitted in thought is forgotten, not held: it does not matter what becomes of it. So
//! holds and waiters only ever get fewer. Each waiter that stays knows one thing that keeps it, and
//! is looked at again when that is gone.

use std::collections::{BTreeMap, BTreeSet};

use super::reachable::Edges;
use crate::core::admission::admit::Verdict;
use crate::core::model::InvalidOutcome;
use crate::core::{Ask, FrameId, Item, Key, RequestId, Table, Token, View, WaiterState};

/// A part of the table in which what can move is moved.
#[derive(Debug)]
pub(in crate::core) struct Thought {
    /// What is left.
    pub(in crate::core) rest: Table,
    edges: Edges,
    /// A session that does not move.
    frozen: Option<FrameId>,
    /// How many wait in each frame and inside it.
    inside: BTreeMap<FrameId, usize>,
    /// Frames of which, and inside which, nobody waits any more.
    ending: Vec<FrameId>,
    /// Waiters to look at.
    retry: BTreeSet<RequestId>,
    kept: Kept,
}

/// Waiters by what keeps them.
#[derive(Debug, Default)]
struct Kept {
    by_hold: BTreeMap<Token, Vec<RequestId>>,
    by_waiter: BTreeMap<RequestId, Vec<RequestId>>,
    /// By how many slots may be held when they fit.
    by_slots: BTreeMap<Key, BTreeMap<u64, Vec<RequestId>>>,
}

impl Table {
    /// What is left of a part of the table when everyone has ended who can, and when everyone was
    /// admitted who then can be, but for what a `frozen` session has.
    pub(in crate::core) fn think(self, edges: Edges, frozen: Option<FrameId>) -> Thought {
        let mut inside: BTreeMap<FrameId, usize> = self.frames.keys().map(|id| (*id, 0)).collect();
        for waiter in self.waiters.values() {
            for frame in self.enclosing(waiter.frame) {
                *inside.entry(frame.state.id).or_default() += 1;
            }
        }
        let moves = |frame: FrameId| Some(self.session(frame)) != frozen;
        let ending = inside.iter().filter(|(id, waiting)| **waiting == 0 && moves(**id));
        let ending = ending.map(|(id, _)| *id).collect();
        let waiters = self.waiters.values().filter(|waiter| moves(waiter.frame));
        let retry = waiters.map(|waiter| waiter.id).collect();
        let kept = Kept::default();
        let mut thought = Thought { rest: self, edges, frozen, inside, ending, retry, kept };
        thought.go_on();
        thought
    }
}

impl Thought {
    /// The others that are admitted if one is refused.
    pub(in crate::core) fn helped_by_refusal(&self, request: RequestId) -> Vec<RequestId> {
        if !self.can_help(request) {
            return Vec::new();
        }
        let mut without = self.rest.clone();
        must(without.remove_waiter(request).map(drop));
        let left = without.think(self.edges, self.frozen).rest.waiters;
        let others = self.rest.waiters.keys().copied().filter(|other| *other != request);
        others.filter(|other| !left.contains_key(other)).collect()
    }

    /// Whether a refusal lets frames end that hold what another request wants. Cheap.
    fn can_help(&self, request: RequestId) -> bool {
        let Some(waiter) = self.rest.waiters.get(&request) else { return false };
        let frames = self.rest.enclosing(waiter.frame);
        let ending = frames.filter(|frame| self.inside.get(&frame.state.id) == Some(&1));
        let gone: Vec<FrameId> = ending.map(|frame| frame.state.id).collect();
        let held = gone.iter().filter_map(|frame| self.rest.frames.get(frame));
        let keys: BTreeSet<&Key> = held.flat_map(|frame| frame.shares.keys()).collect();
        let near = keys.iter().flat_map(|key| self.rest.waiting_near(key));
        let others: BTreeSet<RequestId> = near.filter(|other| *other != request).collect();
        let others = others.iter().filter_map(|id| self.rest.waiters.get(id));
        others.into_iter().any(|other| self.rest.may_be_free_without(other, &gone))
    }

    fn go_on(&mut self) {
        loop {
            while let Some(request) = self.retry.pop_first() {
                self.look_at(request);
            }
            let ending = std::mem::take(&mut self.ending);
            if ending.is_empty() {
                return;
            }
            for frame in ending {
                self.end(frame);
            }
        }
    }

    fn look_at(&mut self, request: RequestId) {
        let Some(waiter) = self.rest.waiters.get(&request) else { return };
        let kin = self.rest.kin(waiter.frame, None);
        let rank = self.rest.rank(waiter);
        let verdict = match self.edges {
            Edges::Holds => self.rest.verdict_alone(&waiter.request, &kin),
            Edges::HoldsAndBars => self.rest.verdict(&waiter.request, &kin, rank),
        };
        match verdict {
            Verdict::Grant { .. } => self.admit(request),
            Verdict::Full(item) => self.rest.note_what_holds(&mut self.kept, waiter, item, &kin),
            Verdict::Barred(item) => {
                let by = self.rest.last_barring(&waiter.request, item, &kin, rank);
                self.kept.by_waiter.entry(by.unwrap_or(request)).or_default().push(request);
            }
        }
    }

    fn admit(&mut self, request: RequestId) {
        let Some(frame) = self.rest.waiters.get(&request).map(|waiter| waiter.frame) else {
            return;
        };
        for frame in self.rest.enclosing(frame) {
            let id = frame.state.id;
            let Some(inside) = self.inside.get_mut(&id) else { continue };
            *inside -= 1;
            if *inside == 0 && Some(frame.root) != self.frozen {
                self.ending.push(id);
            }
        }
        must(self.rest.remove_waiter(request).map(drop));
        self.retry.extend(self.kept.by_waiter.remove(&request).into_iter().flatten());
    }

    fn end(&mut self, frame: FrameId) {
        let Some(frame) = self.rest.frames.get(&frame) else { return };
        for token in frame.holds.clone() {
            let Some(hold) = self.rest.holds.get(&token) else { continue };
            let keys: Vec<Key> = hold.items.iter().map(|item| item.key.clone()).collect();
            must(self.rest.give_back(token, &keys));
            self.retry.extend(self.kept.by_hold.remove(&token).into_iter().flatten());
            for key in &keys {
                let Some(kept) = self.kept.by_slots.get_mut(key) else { continue };
                let fit = kept.split_off(&self.rest.held_of(key));
                self.retry.extend(fit.into_values().flatten());
            }
        }
    }
}

impl Table {
    /// Notes that what is held keeps a waiter from one of its items.
    fn note_what_holds(&self, kept: &mut Kept, waiter: &WaiterState, item: usize, kin: &[FrameId]) {
        let Some(item) = waiter.request.items.get(item) else { return };
        let (key, mode) = (&item.key, item.ask.mode());
        let hold = self.conflicting_holds(key, mode, kin).next();
        if let Some(token) = hold {
            kept.by_hold.entry(token).or_default().push(waiter.id);
        } else if let Ask::Counted { count, view } = item.ask {
            let capacity = self.view_of(key, view).map_or(0, View::capacity);
            if let Some(held) = capacity.checked_sub(count) {
                let slots = kept.by_slots.entry(key.clone()).or_default();
                slots.entry(held).or_default().push(waiter.id);
            }
        }
    }

    /// Whether a waiter may have what it wants when some frames have let go of all they hold. It
    /// may not, all the same, if others share the slots of those.
    fn may_be_free_without(&self, waiter: &WaiterState, gone: &[FrameId]) -> bool {
        let kin = self.kin(waiter.frame, None);
        let exempt = [&kin, gone].concat();
        waiter.request.items.iter().all(|item| {
            self.foreign_conflicts(&item.key, item.ask.mode(), &exempt) == 0
                && self.may_fit_without(item, &kin, gone)
        })
    }

    fn may_fit_without(&self, item: &Item, kin: &[FrameId], gone: &[FrameId]) -> bool {
        let Ask::Counted { count, view } = item.ask else { return true };
        let Some(lock) = self.tree.lock(&item.key) else { return true };
        let shares = gone.iter().filter_map(|frame| self.frames.get(frame)?.shares.get(&item.key));
        let held = lock.held - shares.map(|share| share.slots).sum::<u64>();
        let capacity = self.view_of(&item.key, view).map_or(0, View::capacity);
        self.base(lock, &item.key, count, kin).is_some() || held.saturating_add(count) <= capacity
    }
}

/// What is done in thought was looked up in the very table that it is done to.
fn must(done: Result<(), InvalidOutcome>) {
    if let Err(misfit) = done {
        panic!("a thought contradicts itself: {misfit}");
    }
}
