//! The tree of keys: the holds and waiters of each key and of the keys below it, in every mode.
//!
//! Two items conflict if the key of one covers the key of the other and one of them is a write. A
//! counted item counts as a read. A node keeps sums over the keys below it, so a look-up costs the
//! depth of the path. The tree is only an index: it has no nodes for unused keys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::counted_lock::Lock;
use super::grant_order::{Rank, Waits, change_waits};
use crate::{HeldItem, Item, Key, Mode, RequestId, Settings, Token};

/// The nodes of all keys in use and of their ancestors.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyTree {
    nodes: BTreeMap<Key, Box<Node>>,
}

/// Whether two modes conflict, on keys of which one covers the other.
pub(crate) fn conflict(one: Mode, other: Mode) -> bool {
    one == Mode::Write || other == Mode::Write
}

impl KeyTree {
    pub(crate) fn node(&self, key: &Key) -> Option<&Node> {
        self.nodes.get(key).map(Box::as_ref)
    }

    /// The key as the tree stores it, to share its text.
    pub(crate) fn key(&self, key: &Key) -> Option<&Key> {
        self.nodes.get_key_value(key).map(|(key, _)| key)
    }

    /// The keys that are held, waited for, paused or have a stored view. Omits the nodes that exist
    /// only for the keys below them.
    pub(crate) fn keys<'a>(
        &'a self,
        prefix: Option<&Key>,
    ) -> impl Iterator<Item = &'a Key> + use<'a> {
        let own = prefix.and_then(|prefix| self.nodes.get_key_value(prefix));
        let all = || self.nodes.range::<str, _>(..);
        let below = prefix.map_or_else(all, |prefix| prefix.below_in(&self.nodes));
        own.into_iter().chain(below).filter(|(_, node)| node.is_used()).map(|(key, _)| key)
    }

    /// The nodes of a key and of its ancestors.
    fn above<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = (&'a Key, &'a Node)> {
        let above = key.above().filter_map(|covering| self.nodes.get_key_value(covering));
        let nodes = above.chain(self.nodes.get_key_value(key));
        nodes.map(|(key, node)| (key, &**node))
    }

    /// The nodes below a key.
    fn below<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = (&'a Key, &'a Node)> {
        key.below_in(&self.nodes).map(|(key, node)| (key, &**node))
    }

    /// The counted lock of a key.
    pub(crate) fn lock(&self, key: &Key) -> &Lock {
        static IDLE: LazyLock<Lock> = LazyLock::new(Lock::default);
        self.node(key).map_or(&IDLE, |node| &node.lock)
    }

    /// Changes the counted lock of a key.
    pub(crate) fn change_lock(&mut self, key: &Key, change: impl FnOnce(&mut Lock)) {
        self.change_own(key, |node| change(&mut node.lock));
    }

    /// The settings of all keys, in order.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&Key, &Settings)> {
        self.nodes.iter().map(|(key, node)| (key, &node.lock.settings))
    }

    /// Changes the key's own node, and drops it if it becomes empty.
    fn change_own(&mut self, key: &Key, own: impl FnOnce(&mut Node)) {
        let node = self.nodes.entry(key.clone()).or_default();
        own(node);
        if node.is_empty() {
            self.nodes.remove(key);
        }
    }

    /// Changes the sums of the ancestors of a key.
    fn change_above(&mut self, key: &Key, sums: impl Fn(&mut Sums)) {
        for covering in key.above() {
            let node = match self.nodes.get_mut(covering) {
                Some(node) => node,
                None => self.nodes.entry(key.ancestor(covering.len())).or_default(),
            };
            sums(&mut node.below);
            if node.is_empty() {
                self.nodes.remove(covering);
            }
        }
    }

    /// Adds an item of a hold. Returns the lock of its key, which a counted item uses.
    pub(crate) fn add_hold(&mut self, item: &HeldItem, token: Token) -> &mut Lock {
        let sums = |sums: &mut Sums| *sums.held.of_mut(item.mode) += 1;
        self.change_above(&item.key, sums);
        let node = self.nodes.entry(item.key.clone()).or_default();
        sums(&mut node.here);
        node.holds.insert(token);
        if let (Mode::Counted, Some(view)) = (item.mode, item.view) {
            node.lock.add_use(view.kind());
        }
        &mut node.lock
    }

    /// Removes an item of a hold, and its use of the lock. `free` frees the slots of a counted
    /// item.
    pub(crate) fn remove_hold(
        &mut self,
        item: &HeldItem,
        token: Token,
        free: impl FnOnce(&mut Lock),
    ) {
        let sums = |sums: &mut Sums| *sums.held.of_mut(item.mode) -= 1;
        self.change_above(&item.key, sums);
        self.change_own(&item.key, |node| {
            sums(&mut node.here);
            node.holds.remove(&token);
            if item.mode == Mode::Counted {
                free(&mut node.lock);
                node.lock.remove_use();
            }
        });
    }

    /// Changes the token of a hold that has an item of a key.
    pub(crate) fn change_token(&mut self, key: &Key, was: Token, token: Token) {
        let Some(node) = self.nodes.get_mut(key) else { return };
        for tokens in [&mut node.holds, &mut node.lock.sharers] {
            if tokens.remove(&was) {
                tokens.insert(token);
            }
        }
    }

    /// Adds an item of a waiter, or removes it. `rests`: whether the waiter is inactive.
    pub(crate) fn change_waiter(&mut self, item: &Item, rank: Rank, rests: bool, is_added: bool) {
        let sums = |sums: &mut Sums| {
            change_waits(sums.waits.of_mut(item.ask.mode()), rank, is_added);
        };
        let own = |node: &mut Node| {
            match (rests, is_added) {
                (false, _) => sums(&mut node.here),
                (true, true) => drop(node.inactive.insert(rank.request)),
                (true, false) => drop(node.inactive.remove(&rank.request)),
            }
            if let Some(wanted) = item.ask.counted() {
                node.lock.change_waiter(wanted, rank, rests, is_added);
            }
        };
        if !rests {
            self.change_above(&item.key, sums);
        }
        self.change_own(&item.key, own);
    }

    /// How many held items conflict with an item of a key.
    pub(crate) fn conflicts(&self, key: &Key, mode: Mode) -> usize {
        let count = |sums: &Sums| sums.held.against(mode).sum::<usize>();
        let covering = key.above().filter_map(|covering| self.nodes.get(covering));
        let above: usize = covering.map(|node| count(&node.here)).sum();
        above + self.node(key).map_or(0, |node| count(&node.here) + count(&node.below))
    }

    /// The keys of held items that conflict with an item of `key`, each with its holds. Linear in
    /// the number of keys below `key`.
    pub(crate) fn conflicting<'a>(
        &'a self,
        key: &'a Key,
        mode: Mode,
    ) -> impl Iterator<Item = (&'a Key, &'a BTreeSet<Token>)> {
        let held = move |sums: &Sums| sums.held.against(mode).any(|count| *count > 0);
        let below = self.node(key).filter(|node| held(&node.below)).map(|_| self.below(key));
        let nodes = self.above(key).chain(below.into_iter().flatten());
        nodes.filter(move |(_, node)| held(&node.here)).map(|(key, node)| (key, &node.holds))
    }

    /// The first competitor for an item of `key` that precedes a rank.
    pub(crate) fn first_before(&self, key: &Key, mode: Mode, rank: Rank) -> Option<Rank> {
        let firsts = self.competing(key, mode).filter_map(|waits| waits.keys().next().copied());
        firsts.filter(|first| *first < rank).min()
    }

    /// The waiters for items that conflict with an item of `key`.
    pub(crate) fn competing<'a>(
        &'a self,
        key: &'a Key,
        mode: Mode,
    ) -> impl Iterator<Item = &'a Waits> + use<'a> {
        let above = self.above(key).map(|(_, node)| &node.here);
        let below = self.node(key).into_iter().map(|node| &node.below);
        above.chain(below).flat_map(move |sums| sums.waits.against(mode))
    }

    /// The waiters for this key in a mode; counted items count as reads.
    pub(crate) fn waiting_here(&self, key: &Key, mode: Mode) -> impl Iterator<Item = Rank> {
        let waits = self.node(key).map(|node| node.here.waits.of(mode));
        waits.into_iter().flat_map(|waits| waits.keys().copied())
    }

    /// Whether a competitor for an item of `key` is behind a rank.
    pub(crate) fn has_behind(&self, key: &Key, mode: Mode, rank: Rank) -> bool {
        let mut lasts = self.competing(key, mode).filter_map(|waits| waits.keys().next_back());
        lasts.any(|last| *last > rank)
    }
}

/// One key of the tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// The holds with an item of this key.
    pub(crate) holds: BTreeSet<Token>,
    /// Inactive waiters for this key: suspended or parked.
    pub(crate) inactive: BTreeSet<RequestId>,
    pub(crate) here: Sums,
    pub(crate) below: Sums,
    /// Its counted lock. The lock is idle while no slots are in use, no view is stored and it is
    /// not paused.
    pub(crate) lock: Lock,
}

/// The number of items that are held and waited for, at a key or below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) held: PerMode<usize>,
    /// Each waiter, with the number of its items.
    pub(crate) waits: PerMode<Waits>,
}

/// A value for reads (counted items among them) and a value for writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerMode<T> {
    pub(crate) reads: T,
    pub(crate) writes: T,
}

impl<T> PerMode<T> {
    pub(crate) fn of(&self, mode: Mode) -> &T {
        if mode == Mode::Write { &self.writes } else { &self.reads }
    }

    pub(crate) fn of_mut(&mut self, mode: Mode) -> &mut T {
        if mode == Mode::Write { &mut self.writes } else { &mut self.reads }
    }

    /// The values for the modes that conflict with a mode.
    pub(crate) fn against(&self, mode: Mode) -> impl Iterator<Item = &T> {
        let reads = Some(&self.reads).filter(|_| mode == Mode::Write);
        reads.into_iter().chain([&self.writes])
    }
}

impl Node {
    /// The number of requests that wait for this key.
    pub(crate) fn waiting(&self) -> usize {
        self.inactive.len() + self.here.waits.reads.len() + self.here.waits.writes.len()
    }

    /// Whether this key has a hold, a waiter or a stored view, or is paused.
    pub(crate) fn is_used(&self) -> bool {
        let Self { holds, inactive, here, lock, .. } = self;
        !(lock.is_idle() && holds.is_empty() && inactive.is_empty() && here.is_empty())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.below.is_empty() && !self.is_used()
    }
}

impl Sums {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { held, waits } = self;
        held.reads + held.writes == 0 && waits.reads.is_empty() && waits.writes.is_empty()
    }
}
