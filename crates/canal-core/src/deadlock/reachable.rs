//! Finds the part of the table that some requests can wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::index::grant_order::Rank;
use crate::{FrameId, Key, Mode, RequestId, Snapshot, StoredView, StoredWithout, Table, Token};

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
