//! Graph reduction: ends every frame that can end and admits every request that can then be
//! admitted, on a copy of the table.
//!
//! An admitted request is removed, not held: the reduction assumes that its session ends. So holds
//! and waiters only become fewer. Each remaining waiter is registered under one cause that blocks
//! it, and is examined again when that cause disappears.
//!
//! The copy contains only the part of the table that some requests can wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::admission::admit::Obstacle;
use crate::index::grant_order::{Class, Rank};
use crate::state::table::{Contender, Frame};
use crate::{FrameId, Globals, HoldState, Key, Mode, RequestId, Result, Snapshot, Table, Token};

/// The sessions and keys that some requests can wait for.
#[derive(Debug, Default)]
pub(crate) struct Reachable<'a> {
    /// Sessions, named by their outermost frames.
    pub(crate) sessions: BTreeSet<FrameId>,
    /// Whether a waiter in the set waits for a hold of a starting session, so that a cycle is
    /// possible.
    pub(crate) may_close_cycle: bool,
    /// The keys that the waiters of the set want, by their text.
    keys: BTreeMap<&'a str, &'a Key>,
}

/// The kinds of wait that the search follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edges {
    /// Waits for holds.
    Holds,
    /// Waits for holds, and waits for predecessors.
    HoldsAndOrder,
}

impl Table {
    /// The sessions and keys that some requests can wait for, including their own. Visits each key
    /// and each position in a queue once.
    pub(crate) fn reachable(&self, mut next: Vec<RequestId>, edges: Edges) -> Reachable<'_> {
        let starting = next.iter().filter_map(|id| self.waiters.get(id));
        let starting: BTreeSet<FrameId> =
            starting.map(|waiter| self.session(waiter.frame)).collect();
        let mut reachable = Reachable::default();
        let mut seen = BTreeSet::new();
        // For each key and mode: the holders that are starting sessions, and the rank up to which
        // the search has visited the waiters.
        let mut visited = BTreeMap::new();
        while let Some(id) = next.pop() {
            let Some(waiter) = self.waiters.get(&id).filter(|_| seen.insert(id)) else { continue };
            if self.is_inactive(waiter) {
                continue;
            }
            let (own, rank) = (self.session(waiter.frame), Rank::of(waiter));
            let mut sessions = vec![own];
            // Nested frames can block each other.
            let nests = self.sessions.get(&own).is_some_and(|session| session.frames.len() > 1);
            for item in &waiter.request.items {
                let (key, mode) = (&item.key, item.ask.mode());
                reachable.keys.insert(key.as_str(), key);
                let (holders, up_to) = visited.entry((key, mode)).or_insert_with(|| {
                    let holders = self.holders_in_the_way(key, mode);
                    sessions.extend(&holders);
                    (holders.intersection(&starting).copied().collect::<Vec<_>>(), None::<Rank>)
                });
                reachable.may_close_cycle |= holders.iter().any(|root| *root != own || nests);
                if edges == Edges::HoldsAndOrder && up_to.is_none_or(|to| to < rank) {
                    let from = up_to.replace(rank).map_or(Bound::Unbounded, Bound::Included);
                    // For slots, all that want slots or reads of this key.
                    let slots = self.tree.node(key).filter(|_| mode == Mode::Counted);
                    let slots = slots.map(|node| node.here.waits.of(Mode::Read));
                    let waits = self.tree.competing(key, mode).chain(slots);
                    let ahead = waits.flat_map(|it| it.range((from, Bound::Excluded(rank))));
                    next.extend(ahead.map(|(rank, _)| rank.request));
                }
            }
            for root in sessions {
                if reachable.sessions.insert(root) {
                    next.extend(self.waiters_of_session(root));
                }
            }
        }
        reachable
    }

    /// The sessions that hold slots of a key, or an item that conflicts with it.
    fn holders_in_the_way(&self, key: &Key, mode: Mode) -> BTreeSet<FrameId> {
        let counted = self.tree.node(key).filter(|_| mode == Mode::Counted).map(|node| &node.holds);
        let conflicting = self.tree.conflicting(key, mode).map(|(_, holds)| holds);
        let tokens = counted.into_iter().chain(conflicting).flatten();
        tokens.filter_map(|token| Some(self.session(self.hold(*token)?.frame))).collect()
    }

    /// Copies the reachable part of the table into a separate table. Omits inactive waiters, and
    /// holds of keys that no waiter in it wants.
    pub(crate) fn subtable(&self, reachable: &Reachable<'_>) -> Self {
        let sessions = reachable.sessions.iter();
        let frames: BTreeMap<FrameId, &Frame> = sessions
            .flat_map(|session| self.frames_of_session(*session))
            .map(|frame| (frame.state.id, frame))
            .collect();
        let tokens: BTreeSet<Token> = frames.values().flat_map(|it| it.holds.clone()).collect();
        let mut holds: Vec<&HoldState> = tokens.iter().filter_map(|it| self.hold(*it)).collect();
        holds.retain(|hold| hold.items.iter().any(|item| reachable.is_near(&item.key)));
        let ids: BTreeSet<RequestId> = frames.values().flat_map(|it| it.waiters.clone()).collect();
        let waiters = ids.iter().filter_map(|id| self.waiter(*id));
        let held = holds.iter().flat_map(|hold| hold.items.iter().map(|item| &item.key));
        let keys: BTreeSet<&Key> = reachable.keys.values().copied().chain(held).collect();
        let settings = keys.into_iter().map(|key| (key, &self.tree.lock(key).settings));
        let stored = settings.filter(|(_, settings)| !settings.is_default());
        let Globals { revision, next_token, bypass_max, .. } = self.globals;
        let snapshot = Snapshot {
            globals: Globals { revision, next_token, bypass_max, ..Globals::default() },
            settings: stored.map(|(key, settings)| (key.clone(), settings.clone())).collect(),
            frames: frames.values().map(|frame| frame.state.clone()).collect(),
            holds: holds.into_iter().cloned().collect(),
            waiters: waiters.filter(|waiter| !self.is_inactive(waiter)).cloned().collect(),
        };
        // Cannot fail: a part of a consistent table is consistent.
        Self::restore(&snapshot)
            .unwrap_or_else(|error| panic!("a part of the table is inconsistent: {error}"))
    }
}

impl<'a> Reachable<'a> {
    /// Adds sessions, and all keys that they hold.
    pub(crate) fn add_sessions(&mut self, table: &'a Table, more: &BTreeSet<FrameId>) {
        self.sessions.extend(more);
        let frames = self.sessions.iter().flat_map(|session| table.frames_of_session(*session));
        let holds = frames.flat_map(|frame| table.holds_in(frame.state.id));
        let held = holds.flat_map(|hold| &hold.items).map(|item| &item.key);
        self.keys.extend(held.map(|key| (key.as_str(), key)));
    }

    /// Whether a waiter of the set wants a key, or a key above or below it.
    fn is_near(&self, key: &Key) -> bool {
        key.path().any(|covering| self.keys.contains_key(covering))
            || key.below_in(&self.keys).next().is_some()
    }
}

/// A reduced copy of a part of the table.
#[derive(Debug)]
pub(crate) struct Reduction {
    /// The part of the table that the reduction could not remove.
    pub(crate) residual: Table,
    edges: Edges,
    /// A session whose frames do not end and whose requests are not admitted.
    frozen: Option<FrameId>,
    /// The number of requests that wait in each frame and in the frames inside it.
    inside: BTreeMap<FrameId, usize>,
    /// The frames to end next: no request waits in them or in the frames inside them.
    ending: Vec<FrameId>,
    /// Requests to examine.
    retry: BTreeSet<RequestId>,
    blocked: Blocked,
}

/// Waiters by the cause that blocks them.
#[derive(Debug, Default)]
struct Blocked {
    by_hold: BTreeMap<Token, Vec<RequestId>>,
    by_waiter: BTreeMap<RequestId, Vec<RequestId>>,
    /// Waiters for slots, by the number of held slots at which they fit.
    by_slots: BTreeMap<Key, BTreeMap<u64, Vec<RequestId>>>,
}

impl Table {
    /// The requests that wait in each frame and in the frames inside it. A frame ends only after
    /// all of them have ended.
    pub fn waiters_inside(&self) -> BTreeMap<FrameId, Vec<RequestId>> {
        let mut inside: BTreeMap<FrameId, Vec<RequestId>> =
            self.frames.keys().map(|frame| (*frame, Vec::new())).collect();
        for waiter in self.waiters.values() {
            for frame in self.enclosing(waiter.frame) {
                inside.entry(frame.state.id).or_default().push(waiter.id);
            }
        }
        inside
    }

    /// Ends every frame that can end, and admits every request that can then be admitted. A
    /// `frozen` session keeps its holds and its requests.
    pub(crate) fn reduce(self, edges: Edges, frozen: Option<FrameId>) -> Reduction {
        let inside = self.waiters_inside().into_iter();
        let inside: BTreeMap<FrameId, usize> = inside.map(|(id, it)| (id, it.len())).collect();
        let moves = |frame: FrameId| Some(self.session(frame)) != frozen;
        let ending = inside.iter().filter(|(id, waiting)| **waiting == 0 && moves(**id));
        let ending = ending.map(|(id, _)| *id).collect();
        let waiters = self.waiters.values().filter(|waiter| moves(waiter.frame));
        let retry = waiters.map(|waiter| waiter.id).collect();
        let blocked = Blocked::default();
        let mut reduction =
            Reduction { residual: self, edges, frozen, inside, ending, retry, blocked };
        loop {
            while let Some(request) = reduction.retry.pop_first() {
                reduction.revisit(request);
            }
            let ending = std::mem::take(&mut reduction.ending);
            if ending.is_empty() {
                return reduction;
            }
            ending.into_iter().for_each(|frame| reduction.end(frame));
        }
    }
}

impl Reduction {
    /// The other requests that could be admitted if this one were refused.
    pub(crate) fn helped_by_refusal(&self, request: RequestId) -> Vec<RequestId> {
        if !self.can_help(request) {
            return Vec::new();
        }
        let mut without = self.residual.clone();
        must(without.remove_waiter(request).map(drop));
        let left = without.reduce(self.edges, self.frozen).residual.waiters;
        let others = self.residual.waiters.keys().copied().filter(|other| *other != request);
        others.filter(|other| !left.contains_key(other)).collect()
    }

    /// Whether a refusal lets a frame end that holds a key that another request wants. A cheap
    /// check before the exact one.
    fn can_help(&self, request: RequestId) -> bool {
        let residual = &self.residual;
        let Some(waiter) = residual.waiters.get(&request) else { return false };
        let frames = residual.enclosing(waiter.frame);
        let ending = frames.filter(|frame| self.inside.get(&frame.state.id) == Some(&1));
        let (gone, held): (Vec<FrameId>, Vec<_>) =
            ending.map(|frame| (frame.state.id, frame.shares.keys())).unzip();
        let keys: BTreeSet<&Key> = held.into_iter().flatten().collect();
        let near = keys.iter().flat_map(|key| residual.waiting_near(key));
        let others: BTreeSet<RequestId> = near.filter(|other| *other != request).collect();
        let mut others = others.iter().filter_map(|id| residual.waiters.get(id));
        others.any(|other| residual.may_be_free_without(&residual.contender(other), &gone))
    }

    /// Admits a request, or registers it under the waiter, the hold or the number of slots that
    /// blocks one of its items.
    fn revisit(&mut self, request: RequestId) {
        let (residual, blocked) = (&self.residual, &mut self.blocked);
        let Some(waiter) = residual.waiters.get(&request) else { return };
        let contender = residual.contender(waiter);
        let rank = (self.edges == Edges::HoldsAndOrder).then_some(contender.rank);
        let admission = residual.admission_at(rank, &contender);
        let Err((at, obstacle)) = admission else { return self.admit(request) };
        let item = &waiter.request.items[at];
        let mut holds = residual.conflicting_holds(&item.key, item.ask.mode(), &contender.lineage);
        if obstacle == Obstacle::Behind {
            let by = residual.last_ahead(&contender, item);
            blocked.by_waiter.entry(by.unwrap_or(request)).or_default().push(request);
        } else if let Some(token) = holds.next() {
            blocked.by_hold.entry(token).or_default().push(request);
        } else if let Some((count, own)) = item.ask.counted() {
            let lock = residual.tree.lock(&item.key);
            let Class { capacity, unit, .. } = lock.class_of(count, own);
            // Later, fewer of the slots that are out of service may be held.
            let out = lock.held_out(unit);
            if let Some(held) = capacity.saturating_add(out).checked_sub(count) {
                let slots = blocked.by_slots.entry(item.key.clone()).or_default();
                slots.entry(held).or_default().push(request);
            }
        }
    }

    fn admit(&mut self, request: RequestId) {
        let Some(waiter) = self.residual.waiters.get(&request) else { return };
        for frame in self.residual.enclosing(waiter.frame) {
            let id = frame.state.id;
            let Some(inside) = self.inside.get_mut(&id) else { continue };
            *inside -= 1;
            if *inside == 0 && Some(frame.root) != self.frozen {
                self.ending.push(id);
            }
        }
        must(self.residual.remove_waiter(request).map(drop));
        self.retry.extend(self.blocked.by_waiter.remove(&request).into_iter().flatten());
    }

    fn end(&mut self, frame: FrameId) {
        let Some(frame) = self.residual.frames.get(&frame) else { return };
        for token in frame.holds.clone() {
            let Some(hold) = self.residual.holds.get(&token) else { continue };
            let keys = hold.keys();
            must(self.residual.give_back(token, &keys));
            self.retry.extend(self.blocked.by_hold.remove(&token).into_iter().flatten());
            for key in &keys {
                let Some(blocked) = self.blocked.by_slots.get_mut(key) else { continue };
                let fit = blocked.split_off(&self.residual.held_of(key));
                self.retry.extend(fit.into_values().flatten());
            }
        }
    }
}

impl Table {
    /// Whether a request may be admitted once some frames have released everything, if no waiter
    /// precedes it. Optimistic: frames outside may share those slots.
    pub(crate) fn may_be_free_without(&self, contender: &Contender<'_>, gone: &[FrameId]) -> bool {
        let Contender { asked, lineage, .. } = contender;
        let exempt = [lineage, gone].concat();
        asked.items.iter().all(|item| {
            let (key, mode) = (&item.key, item.ask.mode());
            self.foreign_conflicts(key, mode, &exempt) == 0
                && self.contested(item, lineage).is_none_or(|(lock, class)| {
                    let items = self.counted_by(key, gone).filter(|item| !item.shared);
                    let freed = lock.in_service(class.unit, items.map(|item| &item.slots));
                    let left = lock.held_in_service(class.unit) - freed;
                    left.saturating_add(class.count) <= class.capacity
                })
        })
    }
}

/// Panics on failure: every id was just read from this copy.
pub(super) fn must(done: Result) {
    if let Err(error) = done {
        panic!("the copy is inconsistent: {error}");
    }
}
