//! Carrying out what was decided.
//!
//! Deciding and replaying both come through here: a decision is recorded as an [`Outcome`] and
//! carried out by [`Table::enact`], and a table that is rebuilt from a log carries out the recorded
//! outcomes and decides nothing.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::lane::Place;
use super::lock::Lock;
use super::queue::Rank;
use super::table::{Frame, class};
use super::{
    Change, Entry, FrameId, FrameState, Granted, HeldItem, HoldState, Key, Mode, Outcome, Request,
    RequestId, Slots, Token, View, WaiterState, WaiterStatus,
};
use super::{Table, queue};

/// Why an outcome cannot be carried out.
pub(super) type Misfit = String;

impl Table {
    /// Carries out one outcome of `entry`, which is applied at the table's current revision.
    pub(super) fn enact(&mut self, entry: &Entry, outcome: &Outcome) -> Result<(), Misfit> {
        match outcome {
            Outcome::Queued { request, frame } => self.queue_up(entry, *request, *frame),
            Outcome::Granted(granted) => self.grant(entry, granted),
            Outcome::Refused { request, .. } => {
                if self.waiters.contains_key(request) {
                    self.remove_waiter(*request)?;
                }
                Ok(())
            }
            Outcome::Withdrawn { request } => self.remove_waiter(*request).map(drop),
            Outcome::Released { token, keys, .. } => self.give_back(*token, keys),
            Outcome::Requeued { request, token } => self.take_back(*request, *token),
            Outcome::Barrier { request } => self.raise_barrier(*request),
            Outcome::Resized { .. } => self.store_view(entry),
            Outcome::FrameGone { frame } => self.drop_frame(*frame),
            Outcome::NotHeld | Outcome::ResizeRefused { .. } => Ok(()),
        }
    }

    fn queue_up(&mut self, entry: &Entry, id: RequestId, frame: FrameId) -> Result<(), Misfit> {
        let asked = self.asked(entry, id)?;
        self.open_frame(frame, asked)?;
        self.use_locks(asked);
        self.add_waiter(WaiterState {
            id,
            request: asked.clone(),
            frame,
            since: entry.at,
            status: WaiterStatus::Active,
            barrier: false,
            overtaken: vec![0; asked.items.len()],
            passed: 0,
        })
    }

    /// Notes the use of a lock for each counted item of a request.
    pub(super) fn use_locks(&mut self, asked: &Request) {
        for item in asked.items.iter().filter(|item| item.ask.mode() == Mode::Counted) {
            self.locks.entry(item.key.clone()).or_default().use_by(&item.ask);
        }
    }

    /// Takes in a waiter whose locks and frame are there already.
    pub(super) fn add_waiter(&mut self, waiter: WaiterState) -> Result<(), Misfit> {
        let (id, frame) = (waiter.id, waiter.frame);
        let owner = self.frames.get_mut(&frame).ok_or_else(|| format!("no frame {frame}"))?;
        owner.waiters.insert(id);
        self.tags.insert(waiter.request.tag, id);
        self.waiters.insert(id, waiter);
        self.enqueue(id);
        self.note(frame, 0, 1);
        Ok(())
    }

    /// Removes a waiter; its locks lose a use.
    pub(super) fn remove_waiter(&mut self, id: RequestId) -> Result<WaiterState, Misfit> {
        self.dequeue(id);
        let waiter = self.waiters.remove(&id).ok_or_else(|| format!("request {id} waits not"))?;
        self.tags.remove(&waiter.request.tag);
        if let Some(frame) = self.frames.get_mut(&waiter.frame) {
            frame.waiters.remove(&id);
        }
        self.note(waiter.frame, 0, -1);
        self.ripe.remove(&id);
        for item in &waiter.request.items {
            self.unuse(&item.key, item.ask.mode());
        }
        Ok(waiter)
    }

    fn unuse(&mut self, key: &Key, mode: Mode) {
        if mode == Mode::Counted
            && let Some(lock) = self.locks.get_mut(key)
        {
            lock.unuse();
            if lock.is_idle() {
                self.locks.remove(key);
            }
        }
    }

    fn grant(&mut self, entry: &Entry, granted: &Granted) -> Result<(), Misfit> {
        let id = granted.request;
        if granted.token < self.next_token {
            return Err(format!("token {} was given out before", granted.token));
        }
        let (asked, asked_at) = match self.waiters.get(&id) {
            Some(waiter) => (waiter.request.clone(), waiter.since),
            None => (self.asked(entry, id)?.clone(), entry.at),
        };
        if asked.items.len() != granted.items.len() {
            return Err(format!("request {id} has {} items", asked.items.len()));
        }
        self.open_frame(granted.frame, &asked)?;
        self.use_locks(&asked);
        if self.waiters.contains_key(&id) {
            self.remove_waiter(id)?;
        }
        let items: Vec<HeldItem> = std::iter::zip(&asked.items, &granted.items)
            .map(|(item, given)| HeldItem {
                key: item.key.clone(),
                mode: item.ask.mode(),
                slots: given.slots.clone(),
                shared: given.shared,
                view: given.view,
            })
            .collect();
        self.next_token = Token(granted.token.0 + 1);
        self.take_slots(granted.token, &items)?;
        if !granted.past_own {
            self.count_overtaken(id, asked.priority, &items);
        }
        self.add_hold(HoldState {
            token: granted.token,
            request: id,
            frame: granted.frame,
            since: entry.at,
            asked_at,
            provisional: asked.provisional,
            orphaned: false,
            asked,
            items,
        })
    }

    /// Takes the slots of a hold; its locks have their uses already.
    pub(super) fn take_slots(&mut self, token: Token, items: &[HeldItem]) -> Result<(), Misfit> {
        for item in items {
            self.tree.hold(&item.key, item.mode, token);
            if item.mode != Mode::Counted {
                continue;
            }
            let lock =
                self.locks.get_mut(&item.key).ok_or_else(|| format!("no lock {}", item.key))?;
            if item.shared {
                lock.sharers.insert(token);
            } else if lock.free.take(&item.slots) {
                lock.held += item.slots.count();
            } else {
                return Err(format!("a slot of `{}` for token {token} is not free", item.key));
            }
        }
        Ok(())
    }

    /// Takes in a hold whose slots are taken and whose frame is there already.
    pub(super) fn add_hold(&mut self, hold: HoldState) -> Result<(), Misfit> {
        let (token, frame) = (hold.token, hold.frame);
        let owner = self.frames.get_mut(&frame).ok_or_else(|| format!("no frame {frame}"))?;
        owner.holds.insert(token);
        for item in &hold.items {
            let share = owner.shares.entry(item.key.clone()).or_default();
            share.tokens.insert(token);
            share.slots += if item.shared { 0 } else { item.slots.count() };
            *share.items_of(item.mode) += 1;
        }
        self.tags.insert(hold.asked.tag, hold.request);
        self.granted.insert(hold.request, token);
        self.holds.insert(token, hold);
        self.note(frame, 1, 0);
        Ok(())
    }

    fn count_overtaken(&mut self, request: RequestId, priority: i32, items: &[HeldItem]) {
        if self.rules != super::Rules::Current {
            return;
        }
        let place = queue::place(self.rules, request);
        let mut overtaken = BTreeSet::new();
        for item in items.iter().filter(|item| !item.shared) {
            if item.mode == Mode::Counted
                && let Some(lock) = self.locks.get_mut(&item.key)
            {
                lock.queue.overtake(place);
            }
            overtaken.extend(self.overtaken_around(&item.key, item.mode, priority, place));
        }
        for rank in overtaken {
            let id = queue::request_at(self.rules, rank.place);
            let Some(waiter) = self.waiters.get_mut(&id) else { continue };
            waiter.passed += 1;
            if waiter.passed >= self.bypass_max {
                self.ripe.insert(id);
            }
        }
    }

    /// Those who came earlier and compete by reads and writes, but have a lower priority: nobody
    /// else is behind a request that came later.
    fn overtaken_around(
        &self,
        key: &Key,
        mode: Mode,
        priority: i32,
        place: Place,
    ) -> BTreeSet<Rank> {
        let equals = Rank::ordinary(priority, Place::MAX);
        if self.tree.last_competing(key, mode).is_none_or(|last| last < equals) {
            return BTreeSet::new();
        }
        let mut behind = self.tree.waiting(key, mode, Bound::Excluded(equals), Bound::Unbounded);
        behind.retain(|rank| rank.place < place);
        behind
    }

    fn give_back(&mut self, token: Token, keys: &[Key]) -> Result<(), Misfit> {
        let hold = self.holds.get_mut(&token).ok_or_else(|| format!("no hold {token}"))?;
        let frame = hold.frame;
        let mut gone = Vec::new();
        for key in keys {
            let at = hold.items.iter().position(|item| item.key == *key);
            let at = at.ok_or_else(|| format!("hold {token} has nothing of `{key}`"))?;
            gone.push(hold.items.remove(at));
        }
        if hold.items.is_empty() {
            self.remove_hold(token);
        }
        for item in gone {
            self.unshare(frame, token, &item);
            self.tree.unhold(&item.key, item.mode, token);
            self.free_item(token, &item);
            self.unuse(&item.key, item.mode);
        }
        Ok(())
    }

    fn unshare(&mut self, frame: FrameId, token: Token, item: &HeldItem) {
        let Some(frame) = self.frames.get_mut(&frame) else { return };
        let Some(share) = frame.shares.get_mut(&item.key) else { return };
        share.tokens.remove(&token);
        share.slots -= if item.shared { 0 } else { item.slots.count() };
        *share.items_of(item.mode) -= 1;
        if share.tokens.is_empty() {
            frame.shares.remove(&item.key);
        }
    }

    fn remove_hold(&mut self, token: Token) {
        let Some(hold) = self.holds.remove(&token) else { return };
        self.granted.remove(&hold.request);
        self.tags.remove(&hold.asked.tag);
        if let Some(frame) = self.frames.get_mut(&hold.frame) {
            frame.holds.remove(&token);
        }
        self.note(hold.frame, -1, 0);
    }

    /// Frees what a hold had of a key. If other holds share its slots, the one that shares most of
    /// them (the oldest of those) takes them over, and only the rest is freed.
    fn free_item(&mut self, token: Token, item: &HeldItem) {
        if item.mode != Mode::Counted {
            return;
        }
        let Some(lock) = self.locks.get_mut(&item.key) else { return };
        if lock.sharers.remove(&token) {
            return;
        }
        let shares = |token: &Token| {
            let held = self.holds.get(token)?.items.iter().find(|held| held.key == item.key)?;
            let first = |slots: &Slots| slots.0.first().map(|range| range.0);
            let same = held.mode == Mode::Counted && first(&held.slots) == first(&item.slots);
            same.then(|| (held.slots.count(), std::cmp::Reverse(*token)))
        };
        let heir = lock.sharers.iter().filter_map(shares).max();
        let mut rest = item.slots.clone();
        if let Some((kept, std::cmp::Reverse(heir))) = heir {
            lock.sharers.remove(&heir);
            rest = rest.without_lowest(kept);
            let hold = self.holds.get_mut(&heir);
            let frame = hold.as_ref().and_then(|hold| self.frames.get_mut(&hold.frame));
            if let Some(share) = frame.and_then(|frame| frame.shares.get_mut(&item.key)) {
                share.slots += kept;
            }
            let items = hold.into_iter().flat_map(|hold| &mut hold.items);
            for held in items.filter(|held| held.key == item.key) {
                held.shared = false;
            }
        }
        lock.held -= rest.count();
        lock.free.give_back(&rest);
    }

    fn take_back(&mut self, id: RequestId, token: Token) -> Result<(), Misfit> {
        let hold = self.holds.get(&token).ok_or_else(|| format!("no hold {token}"))?.clone();
        let keys: Vec<Key> = hold.items.iter().map(|item| item.key.clone()).collect();
        self.use_locks(&hold.asked);
        self.give_back(token, &keys)?;
        self.add_waiter(WaiterState {
            id,
            frame: hold.frame,
            since: hold.asked_at,
            status: WaiterStatus::Suspended,
            barrier: false,
            overtaken: vec![0; hold.asked.items.len()],
            passed: 0,
            request: hold.asked,
        })
    }

    fn raise_barrier(&mut self, id: RequestId) -> Result<(), Misfit> {
        self.save_overtaken(id);
        self.dequeue(id);
        let waiter = self.waiters.get_mut(&id).ok_or_else(|| format!("request {id} waits not"))?;
        waiter.barrier = true;
        self.enqueue(id);
        Ok(())
    }

    fn store_view(&mut self, entry: &Entry) -> Result<(), Misfit> {
        let Change::Resize { key, view } = &entry.change else {
            return Err("a view was stored by an entry that is no resize".to_owned());
        };
        let waiters = self.served(key);
        for id in &waiters {
            self.save_overtaken(*id);
            self.dequeue(*id);
        }
        let lock = self.locks.entry(key.clone()).or_default();
        lock.stored = *view;
        if lock.uses > 0 && view.is_some() {
            lock.own = *view;
        }
        if lock.is_idle() {
            self.locks.remove(key);
        }
        for id in &waiters {
            self.enqueue(*id);
        }
        Ok(())
    }

    /// Keeps how often a waiter was overtaken while it is out of the queues.
    fn save_overtaken(&mut self, id: RequestId) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let overtaken = self.overtaken(waiter);
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.overtaken = overtaken;
        }
    }

    /// Opens the frame of a request if it is not open yet.
    fn open_frame(&mut self, id: FrameId, asked: &Request) -> Result<(), Misfit> {
        if self.frames.contains_key(&id) {
            return Ok(());
        }
        if id.0 != self.revision.0 {
            return Err(format!("no frame {id}"));
        }
        self.add_frame(FrameState {
            id,
            host: asked.host,
            owner: asked.owner.clone(),
            parent: asked.parent.filter(|parent| self.frames.contains_key(parent)),
            uid: asked.uid,
            ended: false,
        });
        Ok(())
    }

    /// Takes in a frame; its parent is there already.
    pub(super) fn add_frame(&mut self, state: FrameState) {
        let id = state.id;
        let root = state.parent.map_or(id, |parent| self.session(parent));
        if let Some(parent) = state.parent.and_then(|parent| self.frames.get_mut(&parent)) {
            parent.children += 1;
        }
        if !state.ended {
            self.owners.insert((state.host, state.owner.clone()), id);
        }
        self.sessions.entry(root).or_default().frames.insert(id);
        let (holds, shares, waiters) = Default::default();
        self.frames.insert(id, Frame { state, root, children: 0, holds, shares, waiters });
    }

    fn drop_frame(&mut self, id: FrameId) -> Result<(), Misfit> {
        let frame = self.frames.remove(&id).ok_or_else(|| format!("no frame {id}"))?;
        if !frame.state.ended {
            self.owners.remove(&(frame.state.host, frame.state.owner));
        }
        if let Some(parent) = frame.state.parent.and_then(|parent| self.frames.get_mut(&parent)) {
            parent.children -= 1;
        }
        if let Some(session) = self.sessions.get_mut(&frame.root) {
            session.frames.remove(&id);
            if session.frames.is_empty() {
                self.sessions.remove(&frame.root);
                self.entangled.remove(&frame.root);
            }
        }
        Ok(())
    }

    fn asked<'e>(&self, entry: &'e Entry, id: RequestId) -> Result<&'e Request, Misfit> {
        match &entry.change {
            Change::Request(request) if id.0 == self.revision.0 => Ok(request),
            _ => Err(format!("request {id} is unknown")),
        }
    }

    /// What an entry changes without any decision: flags of what it names.
    pub(super) fn mark(&mut self, entry: &Entry) {
        match &entry.change {
            Change::Confirm { request } => {
                let token = self.granted.get(request);
                if let Some(hold) = token.and_then(|token| self.holds.get_mut(token)) {
                    hold.provisional = false;
                }
            }
            Change::End { frame } => self.mark_ended(*frame),
            Change::Suspend { request } => self.mark_waiter(*request, WaiterStatus::Suspended),
            Change::Resume { request } => self.mark_waiter(*request, WaiterStatus::Active),
            Change::Detach { host } => {
                let on_host = |waiter: &&WaiterState| waiter.request.host == *host;
                let ids: Vec<_> =
                    self.waiters.values().filter(on_host).map(|waiter| waiter.id).collect();
                for id in ids {
                    self.mark_waiter(id, WaiterStatus::Detached);
                }
            }
            Change::Policy { bypass_max } => self.bypass_max = (*bypass_max).max(1),
            Change::Floor { token } => self.next_token = self.next_token.max(*token),
            Change::Request(_)
            | Change::Withdraw { .. }
            | Change::Release(_)
            | Change::Resize { .. } => {}
        }
    }

    fn mark_ended(&mut self, id: FrameId) {
        let Some(frame) = self.frames.get_mut(&id) else { return };
        frame.state.ended = true;
        self.owners.remove(&(frame.state.host, frame.state.owner.clone()));
        for token in &frame.holds {
            if let Some(hold) = self.holds.get_mut(token) {
                hold.orphaned = true;
            }
        }
    }

    pub(super) fn mark_waiter(&mut self, id: RequestId, status: WaiterStatus) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let useless = status == WaiterStatus::Suspended && waiter.status != WaiterStatus::Active;
        if waiter.status == status || useless {
            return;
        }
        self.save_overtaken(id);
        self.dequeue(id);
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.status = status;
        }
        self.enqueue(id);
    }

    /// The class of each item of a waiter, with its key.
    pub(super) fn classes<'a>(
        &'a self,
        request: &'a Request,
    ) -> impl Iterator<Item = (&'a Key, &'a Lock, queue::Class)> {
        request.items.iter().filter_map(|item| {
            let lock = self.locks.get(&item.key)?;
            Some((&item.key, lock, class(lock, &item.ask)?))
        })
    }

    /// The view that a counted item of a key is measured by.
    pub(super) fn view_of(&self, key: &Key, stated: Option<View>) -> Option<View> {
        match self.locks.get(key) {
            Some(lock) => lock.view_for(stated),
            None => Some(stated.unwrap_or(View::Slots { slots: 1 })),
        }
    }
}
