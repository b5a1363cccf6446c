//! Queries of the table, for status and messages: keys, sizes, holders, settings, positions.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::index::grant_order::Class;
use crate::index::key_tree::Node;
use crate::{
    Granted, GrantedItem, HeldItem, HoldState, Item, Key, Kind, Mode, Request, RequestId, Settings,
    Table, Token, View,
};

impl Table {
    /// The keys that `prefix` covers (all keys if `None`) and that are in use, have a stored view
    /// or are paused, in order. The cost is proportional to their number.
    pub fn keys<'a>(&'a self, prefix: Option<&Key>) -> impl Iterator<Item = &'a Key> + use<'a> {
        self.tree.keys(prefix)
    }

    /// Replaces keys with the equal keys of the table, so that thousands of waiters for one key
    /// store its text once. Does nothing while there are no waiters.
    pub fn share_keys(&self, items: &mut [Item]) {
        if self.waiters.is_empty() {
            return;
        }
        for item in items {
            if let Some(key) = self.tree.key(&item.key) {
                item.key = key.clone();
            }
        }
    }

    /// The stored view of a key, else the view that a request without one would get now; `None` for
    /// a key without a stored view or slots in use.
    pub fn effective_view(&self, key: &Key) -> Option<View> {
        self.settings(key).view.or_else(|| self.kind(key).map(|_| self.followed(key)))
    }

    /// The kind in which a key is in use, else the kind of its stored view.
    pub fn kind(&self, key: &Key) -> Option<Kind> {
        self.tree.lock(key).effective_kind()
    }

    /// The number of slots of that view that are in service.
    pub fn effective_capacity(&self, key: &Key) -> Option<u64> {
        self.effective_view(key).map(|view| self.settings(key).without.capacity(view))
    }

    /// Whether more slots of a key are held than its stored size has in service.
    pub fn is_overfull(&self, key: &Key) -> bool {
        let lock = self.tree.lock(key);
        lock.settings.view.is_some() && !lock.fits(lock.class_of(0, None))
    }

    /// The holds of a key, oldest first.
    pub fn holders(&self, key: &Key) -> impl Iterator<Item = Token> {
        self.tree.node(key).into_iter().flat_map(|node| node.holds.iter().copied())
    }

    /// The number of held slots of a key.
    pub fn held_of(&self, key: &Key) -> u64 {
        self.tree.lock(key).held
    }

    /// Recreates the grant of a hold that was decided earlier. `acquired` is the number held now.
    pub fn granted(&self, hold: &HoldState) -> Granted {
        let items = hold.items.iter().map(|item| GrantedItem {
            acquired: self.acquired(item),
            slots: item.slots.clone(),
            shared: item.shared,
            view: item.view,
        });
        let HoldState { request, frame, token, .. } = *hold;
        Granted { request, frame, token, items: items.collect(), bypassed_blockers: false }
    }

    fn acquired(&self, item: &HeldItem) -> u64 {
        if item.mode == Mode::Counted {
            return self.held_of(&item.key);
        }
        let holds = self.holders(&item.key).filter_map(|token| self.hold(token));
        let is_same = |held: &HeldItem| held.key == item.key && held.mode == item.mode;
        let same = holds.filter(|hold| hold.items.iter().any(is_same));
        same.map(|hold| hold.frame).collect::<BTreeSet<_>>().len() as u64
    }

    /// The numbers of held slots and of all slots that are in service under the view of an item,
    /// for a request that waits or arrives next. `None` for reads and writes.
    pub fn use_for(&self, asked: &Request, item: usize) -> Option<(u64, u64)> {
        let asked = self.asked_for(asked);
        let Item { key, ask } = asked.items.get(item)?;
        let (count, own) = ask.counted()?;
        let lock = self.tree.lock(key);
        let Class { capacity, unit, .. } = lock.class_of(count, own);
        Some((lock.held_in_service(unit), capacity))
    }

    /// The view that the latest hold of a key other than `own` stated.
    pub fn stated_by_others(&self, key: &Key, own: Option<Token>) -> Option<View> {
        let mut stated = self.stated_by_holds(key);
        stated.find(|(token, _)| Some(*token) != own).map(|(_, view)| view)
    }

    /// The request with its views, as the table stores it or would store it.
    pub(crate) fn asked_for<'r>(&self, asked: &'r Request) -> Cow<'r, Request> {
        if self.tagged(asked.tag).is_some() { Cow::Borrowed(asked) } else { self.sized(asked) }
    }

    /// The stored settings of a key.
    pub fn settings(&self, key: &Key) -> &Settings {
        &self.tree.lock(key).settings
    }

    /// The number of requests that wait for a key.
    pub fn waiting_for(&self, key: &Key) -> usize {
        self.tree.node(key).map_or(0, Node::waiting)
    }

    /// Whether an active request waits for a key, or for a key above or below it. Linear in the
    /// number of waiters.
    pub fn is_awaited(&self, key: &Key) -> bool {
        let meets = |item: &Item| item.key.covers(key) || key.covers(&item.key);
        let mut waiters = self.waiters.values();
        waiters.any(|waiter| waiter.request.items.iter().any(meets) && !self.is_inactive(waiter))
    }

    /// A waiter's position in the queue of an item's key: 1 is granted next. Linear in the length
    /// of the queue.
    pub fn position(&self, request: RequestId, item: usize) -> Option<usize> {
        let key = &self.waiters.get(&request)?.request.items.get(item)?.key;
        self.served(key).iter().position(|id| *id == request).map(|index| index + 1)
    }
}
