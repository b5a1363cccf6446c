//! Holds: grants add them, releases remove items from them.

use std::borrow::Cow;
use std::collections::btree_map;
use std::sync::Arc;

use super::nested_frames::with_parent;
use super::table::Holds;
use crate::index::counted_lock::Lock;
use crate::{
    Entry, FrameId, Granted, HeldItem, HoldState, Key, Mode, RequestId, Result, Slots, Table,
    Token, WaiterState, WaiterStatus, key_room,
};

impl Table {
    pub(crate) fn grant(&mut self, entry: &Entry, granted: &Granted) -> Result {
        let id = granted.request;
        if granted.token < self.globals.next_token {
            return Err(format!("token {} was granted before", granted.token));
        }
        let (asked, asked_at, passed) = match self.waiters.get(&id) {
            Some(waiter) => (waiter.request.clone(), waiter.since, waiter.passed),
            None => (self.stored_form(self.asked(entry, id)?), entry.at, 0),
        };
        if asked.items.len() != granted.items.len() {
            return Err(format!("request {id} has {} items", asked.items.len()));
        }
        self.open_frame(granted.frame, &asked)?;
        let asked = with_parent(asked, self.parent_of(granted.frame));
        let items: Vec<HeldItem> = std::iter::zip(&asked.items, &granted.items)
            .map(|(item, given)| HeldItem {
                key: item.key.clone(),
                mode: item.ask.mode(),
                slots: given.slots.clone(),
                shared: given.shared,
                view: given.view,
                stated: item.ask.stated().filter(|_| !given.shared),
            })
            .collect();
        // A request over nodes is confirmed with the next token, unless another node gives a larger
        // one. So that token stays free.
        let given_out = if asked.over_nodes.is_some() { 2 } else { 1 };
        self.globals.next_token = Token(granted.token.0 + given_out);
        self.take_slots(granted.token, &items)?;
        if self.waiters.contains_key(&id) {
            self.remove_waiter(id)?;
        }
        self.add_hold(HoldState {
            token: granted.token,
            request: id,
            frame: granted.frame,
            since: entry.at,
            asked_at,
            provisional: asked.provisional,
            orphaned: false,
            passed,
            asked: Arc::clone(&asked),
            items,
        })?;
        self.requeue_session(granted.frame, asked.items.iter().map(|item| &item.key));
        Ok(())
    }

    /// Takes the slots of a hold.
    pub(crate) fn take_slots(&mut self, token: Token, items: &[HeldItem]) -> Result {
        for item in items {
            let lock = self.tree.add_hold(item, token);
            if item.mode != Mode::Counted {
                continue;
            }
            if item.view.is_none() {
                return Err(format!("`{}` of token {token} has no size", item.key));
            }
            if item.shared {
                lock.sharers.insert(token);
            } else if !lock.take(&item.slots) {
                return Err(format!("a slot of `{}` for token {token} is not free", item.key));
            }
        }
        Ok(())
    }

    /// Adds a hold whose slots are taken and whose frame exists.
    pub(crate) fn add_hold(&mut self, hold: HoldState) -> Result {
        let (token, frame) = (hold.token, hold.frame);
        let owner = self.frame_mut(frame)?;
        owner.holds.insert(token);
        let mut key_bytes = 0;
        for item in &hold.items {
            key_bytes += key_room(&item.key);
            let share = owner.shares.entry(item.key.clone()).or_default();
            share.tokens.insert(token);
            *share.items.of_mut(item.mode) += 1;
        }
        let usage = self.usage_mut(hold.asked.uid);
        usage.key_bytes += key_bytes;
        usage.leases += usize::from(hold.asked.ttl_ms.is_some());
        self.tags.insert(hold.asked.tag, hold.request);
        if hold.asked.over_nodes.is_some() {
            self.over_nodes.insert(hold.request);
        }
        self.granted.insert(hold.request, token);
        self.holds.insert(token, Arc::new(hold));
        self.count_in_session(frame, 1, 0);
        Ok(())
    }

    pub(crate) fn give_back(&mut self, token: Token, keys: &[Key]) -> Result {
        let hold = self.holds.get_mut(&token).ok_or_else(|| format!("no hold {token}"))?;
        let (frame, uid) = (hold.frame, hold.asked.uid);
        let of_keys = |item: &HeldItem| keys.contains(&item.key);
        let (mut ended, mut gone) = (None, Vec::new());
        if keys.len() == hold.items.len() && hold.items.iter().all(of_keys) {
            ended = self.remove_hold(token);
        } else {
            let hold = Arc::make_mut(hold);
            for key in keys {
                let at = hold.items.iter().position(|item| item.key == *key);
                let at = at.ok_or_else(|| format!("hold {token} does not contain `{key}`"))?;
                gone.push(hold.items.remove(at));
            }
        }
        let items = ended.iter().flat_map(|hold| &hold.items).chain(&gone);
        items.for_each(|item| self.return_item((frame, uid), token, item));
        self.requeue_session(frame, keys.iter());
        Ok(())
    }

    /// Ends a hold, with all its items.
    pub(crate) fn end_hold(&mut self, token: Token) -> Result {
        let keys = self.hold(token).ok_or_else(|| format!("no hold {token}"))?.keys();
        self.give_back(token, &keys)
    }

    /// Frees an item that was taken from its hold.
    fn return_item(&mut self, (frame, uid): (FrameId, u32), token: Token, item: &HeldItem) {
        self.usage_mut(uid).key_bytes -= key_room(&item.key);
        self.unshare(frame, token, item);
        let Self { tree, holds, .. } = self;
        tree.remove_hold(item, token, |lock| free_slots(lock, token, item, holds));
    }

    fn unshare(&mut self, frame: FrameId, token: Token, item: &HeldItem) {
        let Some(frame) = self.frames.get_mut(&frame) else { return };
        let btree_map::Entry::Occupied(mut entry) = frame.shares.entry(item.key.clone()) else {
            return;
        };
        let share = entry.get_mut();
        share.tokens.remove(&token);
        *share.items.of_mut(item.mode) -= 1;
        if share.tokens.is_empty() {
            entry.remove();
        }
    }

    fn remove_hold(&mut self, token: Token) -> Option<Arc<HoldState>> {
        let hold = self.holds.remove(&token)?;
        self.usage_mut(hold.asked.uid).leases -= usize::from(hold.asked.ttl_ms.is_some());
        self.granted.remove(&hold.request);
        self.tags.remove(&hold.asked.tag);
        self.over_nodes.remove(&hold.request);
        if let Some(frame) = self.frames.get_mut(&hold.frame) {
            frame.holds.remove(&token);
        }
        self.count_in_session(hold.frame, -1, 0);
        Some(hold)
    }

    pub(crate) fn revoke(&mut self, id: RequestId, token: Token) -> Result {
        let hold = self.holds.get(&token).ok_or_else(|| format!("no hold {token}"))?.clone();
        self.end_hold(token)?;
        self.add_waiter(WaiterState {
            id,
            frame: hold.frame,
            since: hold.asked_at,
            status: WaiterStatus::Suspended,
            barrier: hold.passed >= self.globals.bypass_max,
            passed: hold.passed,
            size_unchecked: false,
            request: hold.asked.clone(),
        })
    }
}

/// Frees the slots that a hold had of a key. If other holds share these slots, the one that shares
/// most of them (the oldest if there are several) inherits them with their view, and only the
/// remaining slots are freed.
fn free_slots(lock: &mut Lock, token: Token, item: &HeldItem, holds: &mut Holds) {
    if lock.sharers.remove(&token) {
        return;
    }
    let shares = |token: &Token| {
        let held = holds.get(token)?.items.iter().find(|held| held.key == item.key)?;
        let first = |slots: &Slots| slots.0.first().map(|range| range.0);
        let same = held.mode == Mode::Counted && first(&held.slots) == first(&item.slots);
        same.then(|| (held.slots.count(), std::cmp::Reverse(*token)))
    };
    let heir = lock.sharers.iter().filter_map(shares).max();
    let mut rest = Cow::Borrowed(&item.slots);
    if let Some((kept, std::cmp::Reverse(heir))) = heir {
        lock.sharers.remove(&heir);
        rest = Cow::Owned(rest.without_lowest(kept));
        let items =
            holds.get_mut(&heir).into_iter().flat_map(|hold| &mut Arc::make_mut(hold).items);
        for held in items.filter(|held| held.key == item.key) {
            held.shared = false;
            (held.view, held.stated) = (item.view, item.stated);
        }
    }
    lock.give_back(&rest);
}
