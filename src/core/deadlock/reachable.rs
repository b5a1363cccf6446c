//! Who can be waited for from where: the part of the table that a question concerns.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::core::index::queue::{self, Rank};
use crate::core::{FrameId, Key, Mode, RequestId, Snapshot, StoredView, Table, Token, WaiterState};

/// What some requests can wait for.
#[derive(Debug, Default)]
pub(in crate::core) struct Reach<'a> {
    /// By their outermost frames.
    pub(in crate::core) sessions: BTreeSet<FrameId>,
    /// Whether somebody in it waits for what a session that it began with holds.
    pub(in crate::core) closes: bool,
    /// What its waiters want, by its text.
    keys: BTreeMap<&'a str, &'a Key>,
}

/// By what a request can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Edges {
    /// By those who hold something.
    Holds,
    /// Also by those who go first.
    HoldsAndBars,
}

/// What was looked at already of those who are in the way of one mode at one key.
struct Looked {
    /// The sessions among the holders with which the search began.
    begun: Vec<FrameId>,
    /// All waiters before this rank.
    waiters: Option<Rank>,
}

impl Table {
    /// What some requests can wait for, themselves and their sessions among it. Each key and each
    /// place in a queue is looked at once.
    pub(in crate::core) fn reach(
        &self,
        start: impl Iterator<Item = RequestId>,
        edges: Edges,
    ) -> Reach<'_> {
        let mut next: Vec<RequestId> = start.collect();
        let begun = next.iter().filter_map(|id| self.waiters.get(id));
        let begun: BTreeSet<FrameId> = begun.map(|waiter| self.session(waiter.frame)).collect();
        let mut reach = Reach::default();
        let mut seen = BTreeSet::new();
        let mut looked: BTreeMap<(&Key, Mode), Looked> = BTreeMap::new();
        while let Some(id) = next.pop() {
            let Some(waiter) = self.waiters.get(&id).filter(|_| seen.insert(id)) else { continue };
            if self.is_aside(waiter) {
                continue;
            }
            let (own, rank) = (self.session(waiter.frame), self.rank(waiter));
            let mut sessions = vec![own];
            for item in &waiter.request.items {
                let (key, mode) = (&item.key, item.ask.mode());
                reach.keys.insert(key.as_str(), key);
                let looked = looked.entry((key, mode)).or_insert_with(|| {
                    let holders = self.holders_in_the_way(key, mode);
                    sessions.extend(&holders);
                    Looked { begun: holders.intersection(&begun).copied().collect(), waiters: None }
                });
                reach.closes |= looked.begun.iter().any(|root| *root != own || self.nests(own));
                if edges == Edges::HoldsAndBars && looked.waiters.is_none_or(|to| to < rank) {
                    let from =
                        looked.waiters.replace(rank).map_or(Bound::Unbounded, Bound::Included);
                    let ahead = self.tree.in_the_way(key, mode, from, Bound::Excluded(rank));
                    next.extend(ahead.map(|rank| queue::request_at(self.rules, rank.place)));
                }
            }
            for root in sessions {
                if reach.sessions.insert(root) {
                    next.extend(self.waiters_of_session(root));
                }
            }
        }
        reach
    }

    /// Whether a session has frames inside others, which can keep each other.
    fn nests(&self, session: FrameId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.frames.len() > 1)
    }

    /// The sessions that hold slots of a key, or anything that conflicts with an item of it.
    fn holders_in_the_way(&self, key: &Key, mode: Mode) -> BTreeSet<FrameId> {
        let counted = self.tree.node(key).filter(|_| mode == Mode::Counted).map(|node| &node.holds);
        let conflicting = self.tree.conflicting(key, mode).map(|(_, holds)| holds);
        let tokens = counted.into_iter().chain(conflicting).flatten();
        tokens.filter_map(|token| Some(self.session(self.hold(*token)?.frame))).collect()
    }

    pub(in crate::core) fn waiters_of_session(
        &self,
        root: FrameId,
    ) -> impl Iterator<Item = RequestId> + '_ {
        let frames = self.sessions.get(&root).into_iter().flat_map(|session| &session.frames);
        frames.filter_map(|frame| self.frames.get(frame)).flat_map(|f| f.waiters.iter().copied())
    }

    /// A part of the table as a table of its own, without those who take no part and without what
    /// is held of keys that nobody in it wants.
    pub(in crate::core) fn part(&self, reach: &Reach<'_>) -> Self {
        let roots = reach.sessions.iter().filter_map(|root| self.sessions.get(root));
        let frames: BTreeSet<FrameId> =
            roots.flat_map(|session| &session.frames).copied().collect();
        let of = |frame: &FrameId| self.frames.get(frame);
        let held = frames.iter().filter_map(of).flat_map(|frame| &frame.holds);
        let holds: BTreeMap<Token, _> = held
            .filter_map(|token| Some((*token, self.hold(*token)?)))
            .filter(|(_, hold)| hold.items.iter().any(|item| reach.is_near(&item.key)))
            .collect();
        let waiting = frames.iter().filter_map(of).flat_map(|frame| &frame.waiters);
        let waiters: BTreeMap<RequestId, _> = waiting
            .filter_map(|id| Some((*id, self.waiter(*id)?)))
            .filter(|(_, waiter)| !self.is_aside(waiter))
            .collect();
        let held = holds.values().flat_map(|hold| hold.items.iter().map(|item| &item.key));
        let keys: BTreeSet<&Key> = reach.keys.values().copied().chain(held).collect();
        let view = |key: &Key, own: bool| {
            let lock = self.tree.lock(key)?;
            let view = if own { lock.own } else { lock.stored }?;
            Some(StoredView { key: key.clone(), view })
        };
        let not_overtaken = |waiter: &WaiterState| WaiterState {
            overtaken: vec![0; waiter.request.items.len()],
            ..waiter.clone()
        };
        let snapshot = Snapshot {
            revision: self.revision,
            next_token: self.next_token,
            bypass_max: self.bypass_max,
            views: keys.iter().filter_map(|key| view(key, false)).collect(),
            in_use: keys.iter().filter_map(|key| view(key, true)).collect(),
            frames: frames.iter().filter_map(of).map(|frame| frame.state.clone()).collect(),
            holds: holds.into_values().cloned().collect(),
            waiters: waiters.into_values().map(not_overtaken).collect(),
            past_leases: Vec::new(),
            hosts: Vec::new(),
            era: 0,
            longest_ttl_ms: 0,
            untold_below: Token(0),
            recovery: None,
        };
        match Self::restore(&snapshot, self.rules) {
            Ok(part) => part,
            // A part of a table contradicts itself no more than the whole does.
            Err(misfit) => panic!("a part of the table is no table: {misfit}"),
        }
    }
}

impl Reach<'_> {
    /// Whether somebody wants a key, or one above or below it.
    fn is_near(&self, key: &Key) -> bool {
        let (from, to) = key.below();
        let below = (from.as_ref().map(String::as_str), to.as_ref().map(String::as_str));
        key.path().any(|covering| self.keys.contains_key(covering))
            || self.keys.range::<str, _>(below).next().is_some()
    }
}
