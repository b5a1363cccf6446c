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

use crate::admission::admit::Admission;
use crate::index::grant_order::Rank;
use crate::index::lock::Lock;
use crate::model::InvalidOutcome;
use crate::{
    FrameId, Item, Key, Mode, Request, RequestId, Slots, Snapshot, StoredView, StoredWithout,
    Table, Token, WaiterState,
};

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

/// The part of a key that the search has already visited for one mode.
struct Visited {
    /// The holders that are starting sessions.
    starting: Vec<FrameId>,
    /// The search has visited all waiters before this rank.
    waiters: Option<Rank>,
}

impl Table {
    /// The sessions and keys that some requests can wait for, including their own. Visits each key
    /// and each position in a queue once.
    pub(crate) fn reachable(
        &self,
        start: impl Iterator<Item = RequestId>,
        edges: Edges,
    ) -> Reachable<'_> {
        let mut next: Vec<RequestId> = start.collect();
        let starting = next.iter().filter_map(|id| self.waiters.get(id));
        let starting: BTreeSet<FrameId> =
            starting.map(|waiter| self.session(waiter.frame)).collect();
        let mut reachable = Reachable::default();
        let mut seen = BTreeSet::new();
        let mut visited: BTreeMap<(&Key, Mode), Visited> = BTreeMap::new();
        while let Some(id) = next.pop() {
            let Some(waiter) = self.waiters.get(&id).filter(|_| seen.insert(id)) else { continue };
            if self.is_inactive(waiter) {
                continue;
            }
            let (own, rank) = (self.session(waiter.frame), self.rank(waiter));
            let mut sessions = vec![own];
            for item in &waiter.request.items {
                let (key, mode) = (&item.key, item.ask.mode());
                reachable.keys.insert(key.as_str(), key);
                let visited = visited.entry((key, mode)).or_insert_with(|| {
                    let holders = self.holders_in_the_way(key, mode);
                    sessions.extend(&holders);
                    Visited {
                        starting: holders.intersection(&starting).copied().collect(),
                        waiters: None,
                    }
                });
                reachable.may_close_cycle |=
                    visited.starting.iter().any(|root| *root != own || self.nests(own));
                if edges == Edges::HoldsAndOrder && visited.waiters.is_none_or(|to| to < rank) {
                    let from =
                        visited.waiters.replace(rank).map_or(Bound::Unbounded, Bound::Included);
                    let ahead = self.tree.in_the_way(key, mode, from, Bound::Excluded(rank));
                    next.extend(ahead.map(|rank| rank.request));
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

    /// Whether a session has nested frames, which can block each other.
    fn nests(&self, session: FrameId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.frames.len() > 1)
    }

    /// The sessions that hold slots of a key, or an item that conflicts with it.
    fn holders_in_the_way(&self, key: &Key, mode: Mode) -> BTreeSet<FrameId> {
        let counted = self.tree.node(key).filter(|_| mode == Mode::Counted).map(|node| &node.holds);
        let conflicting = self.tree.conflicting(key, mode).map(|(_, holds)| holds);
        let tokens = counted.into_iter().chain(conflicting).flatten();
        tokens.filter_map(|token| Some(self.session(self.hold(*token)?.frame))).collect()
    }

    pub(crate) fn waiters_of_session(&self, root: FrameId) -> impl Iterator<Item = RequestId> + '_ {
        let frames = self.sessions.get(&root).into_iter().flat_map(|session| &session.frames);
        frames.filter_map(|frame| self.frames.get(frame)).flat_map(|f| f.waiters.iter().copied())
    }

    /// Copies the reachable part of the table into a separate table. Omits inactive waiters, and
    /// holds of keys that no waiter in it wants.
    pub(crate) fn subtable(&self, reachable: &Reachable<'_>) -> Self {
        let roots = reachable.sessions.iter().filter_map(|root| self.sessions.get(root));
        let frames: BTreeSet<FrameId> =
            roots.flat_map(|session| &session.frames).copied().collect();
        let of = |frame: &FrameId| self.frames.get(frame);
        let held = frames.iter().filter_map(of).flat_map(|frame| &frame.holds);
        let holds: BTreeMap<Token, _> = held
            .filter_map(|token| Some((*token, self.hold(*token)?)))
            .filter(|(_, hold)| hold.items.iter().any(|item| reachable.is_near(&item.key)))
            .collect();
        let waiting = frames.iter().filter_map(of).flat_map(|frame| &frame.waiters);
        let waiters: BTreeMap<RequestId, _> = waiting
            .filter_map(|id| Some((*id, self.waiter(*id)?)))
            .filter(|(_, waiter)| !self.is_inactive(waiter))
            .collect();
        let held = holds.values().flat_map(|hold| hold.items.iter().map(|item| &item.key));
        let keys: BTreeSet<&Key> = reachable.keys.values().copied().chain(held).collect();
        let view = |key: &Key| Some(StoredView { key: key.clone(), view: self.stored(key)? });
        let without = |key: &Key| {
            let numbers = self.without_of(key);
            (!numbers.is_empty()).then(|| StoredWithout { key: key.clone(), numbers })
        };
        let paused = keys.iter().filter(|key| self.is_paused(key));
        let snapshot = Snapshot {
            revision: self.revision,
            next_token: self.next_token,
            bypass_max: self.bypass_max,
            views: keys.iter().filter_map(|key| view(key)).collect(),
            paused: paused.map(|key| (*key).clone()).collect(),
            without: keys.iter().filter_map(|key| without(key)).collect(),
            frames: frames.iter().filter_map(of).map(|frame| frame.state.clone()).collect(),
            holds: holds.into_values().cloned().collect(),
            waiters: waiters.into_values().cloned().collect(),
            past_leases: Vec::new(),
            superseded: Vec::new(),
            hosts: Vec::new(),
            era: 0,
            longest_ttl_ms: 0,
            untold_below: Token(0),
            recovery: None,
        };
        match Self::restore(&snapshot) {
            Ok(subtable) => subtable,
            // Cannot fail: a part of a consistent table is consistent.
            Err(error) => panic!("a part of the table is inconsistent: {error}"),
        }
    }
}

impl<'a> Reachable<'a> {
    /// Adds sessions, and all keys that they hold.
    pub(crate) fn add_sessions(&mut self, table: &'a Table, more: &BTreeSet<FrameId>) {
        self.sessions.extend(more);
        let sessions = self.sessions.iter().filter_map(|root| table.sessions.get(root));
        let frames = sessions.flat_map(|session| &session.frames);
        let held = frames.flat_map(|frame| table.holds_in(*frame)).flat_map(|hold| &hold.items);
        self.keys.extend(held.map(|item| (item.key.as_str(), &item.key)));
    }
}

impl Reachable<'_> {
    /// Whether a waiter of the set wants a key, or a key above or below it.
    fn is_near(&self, key: &Key) -> bool {
        let (from, to) = key.below();
        let below = (from.as_ref().map(String::as_str), to.as_ref().map(String::as_str));
        key.path().any(|covering| self.keys.contains_key(covering))
            || self.keys.range::<str, _>(below).next().is_some()
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
    /// Ends every frame that can end, and admits every request that can then be admitted. A
    /// `frozen` session keeps its holds and its requests.
    pub(crate) fn reduce(self, edges: Edges, frozen: Option<FrameId>) -> Reduction {
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
        let blocked = Blocked::default();
        let mut reduction =
            Reduction { residual: self, edges, frozen, inside, ending, retry, blocked };
        reduction.run();
        reduction
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
        let Some(waiter) = self.residual.waiters.get(&request) else { return false };
        let frames = self.residual.enclosing(waiter.frame);
        let ending = frames.filter(|frame| self.inside.get(&frame.state.id) == Some(&1));
        let gone: Vec<FrameId> = ending.map(|frame| frame.state.id).collect();
        let held = gone.iter().filter_map(|frame| self.residual.frames.get(frame));
        let keys: BTreeSet<&Key> = held.flat_map(|frame| frame.shares.keys()).collect();
        let near = keys.iter().flat_map(|key| self.residual.waiting_near(key));
        let others: BTreeSet<RequestId> = near.filter(|other| *other != request).collect();
        let others = others.iter().filter_map(|id| self.residual.waiters.get(id));
        others.into_iter().any(|other| {
            let lineage = self.residual.lineage(other.frame, None);
            self.residual.may_be_free_without(&other.request, &lineage, &gone)
        })
    }

    fn run(&mut self) {
        loop {
            while let Some(request) = self.retry.pop_first() {
                self.revisit(request);
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

    fn revisit(&mut self, request: RequestId) {
        let Some(waiter) = self.residual.waiters.get(&request) else { return };
        let lineage = self.residual.lineage(waiter.frame, None);
        let rank = self.residual.rank(waiter);
        let admission = match self.edges {
            Edges::Holds => self.residual.admission_alone(&waiter.request, &lineage),
            Edges::HoldsAndOrder => self.residual.admission(&waiter.request, &lineage, rank),
        };
        match admission {
            Admission::Grant { .. } => self.admit(request),
            Admission::Conflict(item) => {
                self.residual.block_on_hold(&mut self.blocked, waiter, item, &lineage);
            }
            Admission::Behind(item) => {
                let by = self.residual.last_predecessor(&waiter.request, item, &lineage, rank);
                self.blocked.by_waiter.entry(by.unwrap_or(request)).or_default().push(request);
            }
        }
    }

    fn admit(&mut self, request: RequestId) {
        let Some(frame) = self.residual.waiters.get(&request).map(|waiter| waiter.frame) else {
            return;
        };
        for frame in self.residual.enclosing(frame) {
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
            let keys: Vec<Key> = hold.items.iter().map(|item| item.key.clone()).collect();
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
    /// Registers a waiter under the hold, or the number of slots, that blocks one of its items.
    fn block_on_hold(
        &self,
        blocked: &mut Blocked,
        waiter: &WaiterState,
        item: usize,
        lineage: &[FrameId],
    ) {
        let Some(item) = waiter.request.items.get(item) else { return };
        let (key, mode) = (&item.key, item.ask.mode());
        let hold = self.conflicting_holds(key, mode, lineage).next();
        if let Some(token) = hold {
            blocked.by_hold.entry(token).or_default().push(waiter.id);
        } else if let Some((count, own)) = item.ask.counted() {
            let lock = self.tree.lock(key);
            let capacity = Lock::capacity_of(lock, Lock::view_of(lock, own));
            // Later, fewer of the slots that are out of service may be held.
            let out = lock.map_or(0, |lock| lock.held_out(lock.class_of(count, own).unit));
            if let Some(held) = capacity.saturating_add(out).checked_sub(count) {
                let slots = blocked.by_slots.entry(key.clone()).or_default();
                slots.entry(held).or_default().push(waiter.id);
            }
        }
    }

    /// Whether a request of a lineage may be admitted once some frames have released everything, if
    /// no waiter precedes it. Optimistic: frames outside may share those slots.
    pub(crate) fn may_be_free_without(
        &self,
        asked: &Request,
        lineage: &[FrameId],
        gone: &[FrameId],
    ) -> bool {
        let exempt = [lineage, gone].concat();
        asked.items.iter().all(|item| {
            self.foreign_conflicts(&item.key, item.ask.mode(), &exempt) == 0
                && self.may_fit_without(item, lineage, gone)
        })
    }

    fn may_fit_without(&self, item: &Item, lineage: &[FrameId], gone: &[FrameId]) -> bool {
        let Some((count, own)) = item.ask.counted() else { return true };
        let Some(lock) = self.tree.lock(&item.key) else { return true };
        let class = lock.class_of(count, own);
        let held = lock.held_in_service(class.unit);
        let left = if lock.without.is_empty() {
            let of = |frame: &FrameId| self.frames.get(frame)?.shares.get(&item.key);
            held - gone.iter().filter_map(of).map(|share| share.slots).sum::<u64>()
        } else {
            let items = self.counted_by(&item.key, gone).filter(|item| !item.shared);
            let slots = Slots::together(items.map(|item| &item.slots));
            held - lock.without.in_service(class.unit, &slots)
        };
        self.shareable_hold(lock, &item.key, count, lineage).is_some()
            || left.saturating_add(count) <= class.capacity
    }
}

/// Panics on failure: every id was just read from this copy.
fn must(done: Result<(), InvalidOutcome>) {
    if let Err(error) = done {
        panic!("the reduction is inconsistent: {error}");
    }
}
