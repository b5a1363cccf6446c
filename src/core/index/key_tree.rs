//! Who holds and who waits for keys and for what lies below them, whatever the mode.
//!
//! Two items conflict iff the key of one covers that of the other and one of them is a write; a
//! counted item counts as a read. So a node keeps what is held and waited for at its very key, and
//! sums of what is below it: to look at a key costs the depth of its path. The sums are books, not
//! locks: nothing is created for keys that nobody asks for.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::lock::Lock;
use super::node::{Node, Sums};
use super::queue::Rank;
use crate::core::{Key, Mode, RequestId, Token};

/// What one key and its ancestors know.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Tree {
    nodes: BTreeMap<Key, Box<Node>>,
    /// Empty ones, for the next keys: most come and go.
    #[expect(clippy::vec_box, reason = "as they are in the tree")]
    spare: Vec<Box<Node>>,
}

/// So many empty nodes are kept.
const SPARE_MAX: usize = 64;

/// Keeps an empty node for the next key.
#[expect(clippy::vec_box, reason = "as they are in the tree")]
fn keep(spare: &mut Vec<Box<Node>>, node: Box<Node>) {
    debug_assert!(node.lock.is_new(), "{:?}", node.lock);
    if spare.len() < SPARE_MAX {
        spare.push(node);
    }
}

/// The modes that conflict with one.
fn against(mode: Mode) -> &'static [Mode] {
    if mode == Mode::Write { &[Mode::Read, Mode::Write] } else { &[Mode::Write] }
}

/// Whether two modes conflict on keys of which one covers the other.
pub(in crate::core) fn conflict(one: Mode, other: Mode) -> bool {
    one == Mode::Write || other == Mode::Write
}

impl Tree {
    pub(in crate::core) fn node(&self, key: &Key) -> Option<&Node> {
        self.nodes.get(key).map(Box::as_ref)
    }

    /// The same key, as it is kept here.
    pub(in crate::core) fn key(&self, key: &Key) -> Option<&Key> {
        self.nodes.get_key_value(key).map(|(key, _)| key)
    }

    /// The keys that somebody uses or that have a stored view, not those that only have such below
    /// them.
    pub(in crate::core) fn keys<'a>(
        &'a self,
        range: (Bound<&str>, Bound<&str>),
    ) -> impl Iterator<Item = &'a Key> + use<'a> {
        self.nodes.range::<str, _>(range).filter(|(_, node)| node.is_used()).map(|(key, _)| key)
    }

    /// The nodes of a key and of all that cover it.
    fn above<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = (&'a Key, &'a Node)> {
        let above = key.above().filter_map(|covering| self.nodes.get_key_value(covering));
        let nodes = above.chain(self.nodes.get_key_value(key));
        nodes.map(|(key, node)| (key, &**node))
    }

    /// The nodes below a key.
    fn below<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = (&'a Key, &'a Node)> {
        let (from, to) = key.below();
        let range = (from.as_ref().map(String::as_str), to.as_ref().map(String::as_str));
        self.nodes.range::<str, _>(range).map(|(key, node)| (key, &**node))
    }

    /// The slots of a key that are in use or have a stored view.
    pub(in crate::core) fn lock(&self, key: &Key) -> Option<&Lock> {
        self.node(key)?.lock_in_use()
    }

    pub(in crate::core) fn lock_mut(&mut self, key: &Key) -> Option<&mut Lock> {
        self.nodes.get_mut(key).map(|node| &mut node.lock).filter(|lock| !lock.is_idle())
    }

    /// Changes the slots of a key.
    pub(in crate::core) fn change_lock(&mut self, key: &Key, change: impl FnOnce(&mut Lock)) {
        self.change_own(key, |node| change(&mut node.lock));
    }

    /// All locks, in the order of their keys.
    pub(in crate::core) fn locks(&self) -> impl Iterator<Item = (&Key, &Lock)> {
        let locks = self.nodes.iter().map(|(key, node)| (key, &node.lock));
        locks.filter(|(_, lock)| !lock.is_idle())
    }

    /// Changes what the key's own node has.
    fn change_own(&mut self, key: &Key, own: impl FnOnce(&mut Node)) {
        match self.nodes.entry(key.clone()) {
            Entry::Occupied(mut node) => {
                own(node.get_mut());
                if node.get().is_empty() {
                    keep(&mut self.spare, node.remove());
                }
            }
            Entry::Vacant(place) => {
                let mut node = self.spare.pop().unwrap_or_default();
                own(&mut node);
                if !node.is_empty() {
                    place.insert(node);
                }
            }
        }
    }

    /// Changes the sums of a key and of those that cover it, and what else the key's own node has.
    fn change(&mut self, key: &Key, sums: impl Fn(&mut Sums), own: impl FnOnce(&mut Node)) {
        self.change_above(key, &sums);
        self.change_own(key, |node| {
            sums(&mut node.here);
            own(node);
        });
    }

    /// Changes the sums of those that cover a key.
    fn change_above(&mut self, key: &Key, sums: impl Fn(&mut Sums)) {
        for covering in key.above() {
            let node = match self.nodes.get_mut(covering) {
                Some(node) => node,
                None => {
                    let node = self.spare.pop().unwrap_or_default();
                    self.nodes.entry(key.ancestor(covering.len())).or_insert(node)
                }
            };
            sums(&mut node.below);
            if node.is_empty()
                && let Some(node) = self.nodes.remove(covering)
            {
                keep(&mut self.spare, node);
            }
        }
    }

    /// Notes what is held; returns the lock of the key.
    pub(in crate::core) fn hold(&mut self, key: &Key, mode: Mode, token: Token) -> &mut Lock {
        let sums = |sums: &mut Sums| *sums.held.of_mut(mode) += 1;
        self.change_above(key, sums);
        let spare = &mut self.spare;
        let node = self.nodes.entry(key.clone());
        let node = node.or_insert_with(|| spare.pop().unwrap_or_default());
        sums(&mut node.here);
        node.holds.insert(token);
        &mut node.lock
    }

    /// Notes that an item is held no more, with which its lock loses a use; `free` frees the slots of
    /// a counted one.
    pub(in crate::core) fn unhold(
        &mut self,
        key: &Key,
        mode: Mode,
        token: Token,
        free: impl FnOnce(&mut Lock),
    ) {
        let sums = |sums: &mut Sums| *sums.held.of_mut(mode) -= 1;
        self.change(key, sums, |node| {
            node.holds.remove(&token);
            if mode == Mode::Counted {
                free(&mut node.lock);
                node.lock.unuse();
            }
        });
    }

    pub(in crate::core) fn wait(&mut self, key: &Key, mode: Mode, rank: Rank) {
        let sums = |sums: &mut Sums| *sums.waits.of_mut(mode).entry(rank).or_default() += 1;
        self.change(key, sums, |_| ());
    }

    pub(in crate::core) fn unwait(&mut self, key: &Key, mode: Mode, rank: Rank) {
        let sums = |sums: &mut Sums| {
            let waits = sums.waits.of_mut(mode);
            if let Some(items) = waits.get_mut(&rank) {
                *items -= 1;
                if *items == 0 {
                    waits.remove(&rank);
                }
            }
        };
        self.change(key, sums, |_| ());
    }

    pub(in crate::core) fn set_aside(&mut self, key: &Key, request: RequestId) {
        self.change_own(key, |node| {
            node.aside.insert(request);
        });
    }

    pub(in crate::core) fn take_in(&mut self, key: &Key, request: RequestId) {
        self.change_own(key, |node| {
            node.aside.remove(&request);
        });
    }

    /// How many items are held that conflict with an item of `key`.
    pub(in crate::core) fn conflicts(&self, key: &Key, mode: Mode) -> usize {
        self.conflicts_of(key, self.node(key), mode)
    }

    /// The same, of a key whose node was looked up.
    pub(in crate::core) fn conflicts_of(
        &self,
        key: &Key,
        node: Option<&Node>,
        mode: Mode,
    ) -> usize {
        let count =
            |sums: &Sums| against(mode).iter().map(|mode| *sums.held.of(*mode)).sum::<usize>();
        let covering = key.above().filter_map(|covering| self.nodes.get(covering));
        let above: usize = covering.map(|node| count(&node.here)).sum();
        above + node.map_or(0, |node| count(&node.here) + count(&node.below))
    }

    /// The keys of items that conflict with one of `key`, each with its holds. Linear in what
    /// is below the key.
    pub(in crate::core) fn conflicting<'a>(
        &'a self,
        key: &'a Key,
        mode: Mode,
    ) -> impl Iterator<Item = (&'a Key, &'a BTreeSet<Token>)> {
        let held = move |sums: &Sums| against(mode).iter().any(|mode| *sums.held.of(*mode) > 0);
        let below = self.node(key).filter(|node| held(&node.below)).map(|_| self.below(key));
        let nodes = self.above(key).chain(below.into_iter().flatten());
        nodes.filter(move |(_, node)| held(&node.here)).map(|(key, node)| (key, &node.holds))
    }

    /// Whether a waiter of a smaller rank waits for an item that conflicts with one of `key`.
    pub(in crate::core) fn bars(&self, key: &Key, mode: Mode, rank: Rank) -> bool {
        self.competing(key, mode)
            .any(|waits| waits.keys().next().is_some_and(|first| *first < rank))
    }

    /// All who wait for items that conflict with one of `key`, within a range of ranks.
    pub(in crate::core) fn waiting(
        &self,
        key: &Key,
        mode: Mode,
        from: Bound<Rank>,
        to: Bound<Rank>,
    ) -> BTreeSet<Rank> {
        self.competing(key, mode)
            .flat_map(|waits| waits.range((from, to)).map(|(r, _)| *r))
            .collect()
    }

    /// All who can bar an item of `key` if they go first, within a range of ranks: those who compete
    /// with it, and for slots all who want slots of the very key (readers with them).
    pub(in crate::core) fn in_the_way<'a>(
        &'a self,
        key: &'a Key,
        mode: Mode,
        from: Bound<Rank>,
        to: Bound<Rank>,
    ) -> impl Iterator<Item = Rank> + 'a {
        let counted = self.node(key).filter(|_| mode == Mode::Counted);
        let counted = counted.map(|node| node.here.waits.of(Mode::Read));
        let waits = self.competing(key, mode).chain(counted);
        waits.flat_map(move |waits| waits.range((from, to)).map(|(rank, _)| *rank))
    }

    /// The first of those who compete with an item of `key` and go before a rank.
    pub(in crate::core) fn first_before(&self, key: &Key, mode: Mode, rank: Rank) -> Option<Rank> {
        let firsts = self.competing(key, mode).filter_map(|waits| waits.keys().next().copied());
        firsts.filter(|first| *first < rank).min()
    }

    /// The last of those who compete with an item of `key` and go before a rank.
    pub(in crate::core) fn last_before(&self, key: &Key, mode: Mode, rank: Rank) -> Option<Rank> {
        let last = |waits: &BTreeMap<Rank, usize>| waits.range(..rank).next_back().map(|(r, _)| *r);
        self.competing(key, mode).filter_map(last).max()
    }

    /// All who wait for a key, or for one above or below it.
    pub(in crate::core) fn waiting_around<'a>(
        &'a self,
        key: &'a Key,
    ) -> impl Iterator<Item = Rank> + 'a {
        let above = self.above(key).map(|(_, node)| &node.here);
        let below = self.node(key).into_iter().map(|node| &node.below);
        let waits = above.chain(below).flat_map(|sums| [&sums.waits.reads, &sums.waits.writes]);
        waits.flat_map(|waits| waits.keys().copied())
    }

    /// The lowest priority's last waiter among those who compete with an item of `key`.
    pub(in crate::core) fn last_competing(&self, key: &Key, mode: Mode) -> Option<Rank> {
        self.competing(key, mode).filter_map(|waits| waits.keys().next_back().copied()).max()
    }

    fn competing<'a>(
        &'a self,
        key: &'a Key,
        mode: Mode,
    ) -> impl Iterator<Item = &'a BTreeMap<Rank, usize>> + use<'a> {
        let above = self.above(key).map(|(_, node)| &node.here);
        let below = self.node(key).into_iter().map(|node| &node.below);
        above
            .chain(below)
            .flat_map(move |sums| against(mode).iter().map(|mode| sums.waits.of(*mode)))
    }

    /// Those who wait for the very key: readers (counted items among them), then writers.
    pub(in crate::core) fn waiting_here(
        &self,
        key: &Key,
        mode: Mode,
    ) -> impl Iterator<Item = Rank> {
        let waits = self.node(key).map(|node| node.here.waits.of(mode));
        waits.into_iter().flat_map(|waits| waits.keys().copied())
    }

    /// Those who wait below a key.
    pub(in crate::core) fn waiting_below(
        &self,
        key: &Key,
        mode: Mode,
    ) -> impl Iterator<Item = Rank> {
        let waits = self.node(key).map(|node| node.below.waits.of(mode));
        waits.into_iter().flat_map(|waits| waits.keys().copied())
    }

    /// Whether somebody has a rank behind this one among those who compete with an item of `key`.
    pub(in crate::core) fn has_behind(&self, key: &Key, mode: Mode, rank: Rank) -> bool {
        self.last_competing(key, mode).is_some_and(|last| last > rank)
    }
}
