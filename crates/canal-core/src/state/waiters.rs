//! Waiters: they are queued, change their place and their status, and leave.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::frames::with_parent;
use super::locks::Misfit;
use super::table::Contender;
use crate::index::grant_order::Rank;
use crate::index::lock::Lock;
use crate::{
    Change, Entry, FrameId, Key, Mode, PastRequest, Refusal, Request, RequestId, SUPERSEDED_MAX,
    Table, Tag, WaiterState, WaiterStatus, room_of,
};

impl Table {
    /// A waiter among the requests that compete for its items.
    pub(crate) fn contender<'a>(&self, waiter: &'a WaiterState) -> Contender<'a> {
        Contender {
            asked: Cow::Borrowed(&waiter.request),
            frame: waiter.frame,
            lineage: self.lineage(waiter.frame, None),
            rank: Rank::of(waiter),
        }
    }

    /// A new request among those that compete for its items. It opens a frame with the number `id`
    /// if its owner has none.
    pub(crate) fn newcomer<'a>(&self, asked: Cow<'a, Request>, id: RequestId) -> Contender<'a> {
        let frame = self.frame_of(asked.host, &asked.owner).unwrap_or(FrameId(id.0));
        let lineage = self.lineage(frame, self.live_parent(&asked));
        Contender { frame, lineage, rank: Rank::ordinary(asked.priority, id), asked }
    }

    pub(crate) fn queue_up(
        &mut self,
        entry: &Entry,
        id: RequestId,
        frame: FrameId,
    ) -> Result<(), String> {
        let asked = self.stored_form(self.asked(entry, id)?);
        self.open_frame(frame, &asked)?;
        self.use_locks(&asked);
        let mut waiter = WaiterState {
            id,
            request: with_parent(asked, self.parent_of(frame)),
            frame,
            since: entry.at,
            status: WaiterStatus::Active,
            barrier: false,
            passed: 0,
            size_unchecked: false,
        };
        waiter.size_unchecked = self.awaits_resumption(&waiter);
        self.add_waiter(waiter)
    }

    pub(crate) fn asked<'e>(
        &self,
        entry: &'e Entry,
        id: RequestId,
    ) -> Result<&'e Arc<Request>, String> {
        match &entry.change {
            Change::Request(request) if id.0 == self.revision.0 => Ok(request),
            _ => Err(format!("request {id} is unknown")),
        }
    }

    /// Adds a waiter whose frame exists and is already counted by its locks.
    pub(crate) fn add_waiter(&mut self, waiter: WaiterState) -> Result<(), String> {
        let (id, frame) = (waiter.id, waiter.frame);
        self.frame_mut(frame)?.waiters.insert(id);
        self.usage_mut(waiter.request.uid).key_bytes += room_of(&waiter.request.items);
        self.tags.insert(waiter.request.tag, id);
        if waiter.request.over_nodes.is_some() {
            self.over_nodes.insert(id);
        }
        self.waiters.insert(id, Box::new(waiter));
        self.enqueue(id);
        self.count_in_session(frame, 0, 1);
        Ok(())
    }

    /// Removes a waiter, and its use of its locks.
    pub(crate) fn remove_waiter(&mut self, id: RequestId) -> Result<WaiterState, String> {
        self.dequeue(id);
        let waiter =
            self.waiters.remove(&id).ok_or_else(|| format!("request {id} is not waiting"))?;
        self.usage_mut(waiter.request.uid).key_bytes -= room_of(&waiter.request.items);
        self.tags.remove(&waiter.request.tag);
        self.over_nodes.remove(&id);
        if let Some(frame) = self.frames.get_mut(&waiter.frame) {
            frame.waiters.remove(&id);
        }
        self.count_in_session(waiter.frame, 0, -1);
        self.bypass_exhausted.remove(&id);
        for item in &waiter.request.items {
            self.remove_use(&item.key, item.ask.mode());
        }
        Ok(*waiter)
    }

    /// Remembers a superseded request, whose client may ask again before it receives the refusal.
    pub(crate) fn remember_superseded(&mut self, tag: Tag, why: &Refusal) {
        let Refusal::Superseded { by } = *why else { return };
        if self.superseded.len() >= SUPERSEDED_MAX {
            self.superseded.pop_front();
        }
        self.superseded.push_back(PastRequest { tag, by });
    }

    /// Counts a grant that overtook some waiters. Each waiter has one count for all its items. A
    /// count for each queue would change with every resize, pause, stop and restart.
    pub(crate) fn count_pass(&mut self, passed: BTreeSet<RequestId>) {
        for id in passed {
            let Some(waiter) = self.waiters.get_mut(&id) else { continue };
            waiter.passed += 1;
            if waiter.passed >= self.bypass_max {
                self.bypass_exhausted.insert(id);
            }
        }
    }

    pub(crate) fn mark_waiter(&mut self, id: RequestId, status: WaiterStatus) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let is_useless = status == WaiterStatus::Suspended && waiter.status != WaiterStatus::Active;
        if waiter.status != status && !is_useless {
            // Cannot fail: the waiter was just found.
            drop(self.requeue(id, |waiter| waiter.status = status));
        }
    }

    /// Changes a waiter, and its place in the queues of its keys.
    pub(crate) fn requeue(
        &mut self,
        id: RequestId,
        change: impl FnOnce(&mut WaiterState),
    ) -> Result<(), String> {
        self.dequeue(id);
        let waiter = self.waiters.get_mut(&id);
        change(waiter.ok_or_else(|| format!("request {id} is not waiting"))?);
        self.enqueue(id);
        Ok(())
    }

    /// Whether a waiter is inactive, and so in no queue: its process is stopped, or it is parked
    /// because a key is paused or the applicable view is too small for it.
    pub(crate) fn is_inactive(&self, waiter: &WaiterState) -> bool {
        let first = waiter.request.items.first();
        let node = first.and_then(|item| self.tree.node(&item.key));
        node.is_some_and(|node| node.inactive.contains(&waiter.id))
    }

    /// Whether a waiter belongs in no queue: its process is stopped, or it is parked.
    fn must_rest(&self, waiter: &WaiterState) -> bool {
        waiter.status == WaiterStatus::Suspended || self.misfit(&self.contender(waiter)).is_some()
    }

    /// Adds a waiter to the queues of its keys, according to its status and rank.
    fn enqueue(&mut self, id: RequestId) {
        let rests = self.waiters.get(&id).is_some_and(|waiter| self.must_rest(waiter));
        self.change_queues(id, rests, true);
    }

    /// Removes a waiter from the queues of its keys.
    fn dequeue(&mut self, id: RequestId) {
        let rests = self.waiters.get(&id).is_some_and(|waiter| self.is_inactive(waiter));
        self.change_queues(id, rests, false);
    }

    /// Adds a waiter to the queues of its keys, or to their inactive waiters, or removes it there.
    fn change_queues(&mut self, id: RequestId, rests: bool, is_added: bool) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let rank = Rank::of(waiter);
        for item in &waiter.request.items {
            if rests {
                self.tree.change_inactive(&item.key, id, is_added);
                continue;
            }
            self.tree.change_waiter(&item.key, item.ask.mode(), rank, is_added);
            if let Some((count, own)) = item.ask.counted()
                && let Some(lock) = self.tree.lock_mut(&item.key)
            {
                lock.queue.change(lock.class_of(count, own), rank, is_added);
            }
        }
    }

    /// The requests that wait for a key, in queue order.
    #[must_use]
    pub fn served(&self, key: &Key) -> Vec<RequestId> {
        let inactive = self.tree.node(key).into_iter().flat_map(|node| &node.inactive);
        let inactive = inactive.filter_map(|id| self.waiters.get(id)).map(|it| Rank::of(it));
        let reads = self.tree.waiting_here(key, Mode::Read);
        let active = reads.chain(self.tree.waiting_here(key, Mode::Write));
        let mut all: Vec<Rank> = active.chain(inactive).collect();
        all.sort_unstable();
        all.into_iter().map(|rank| rank.request).collect()
    }

    /// Whether a waiter waits for a key to be resumed.
    fn awaits_resumption(&self, waiter: &WaiterState) -> bool {
        matches!(self.misfit(&self.contender(waiter)), Some(Misfit::Paused { .. }))
    }

    /// After a pause or its end: decides which waiters still wait for a key to be resumed before
    /// their sizes are checked.
    pub(crate) fn recheck_sizes(&mut self, key: &Key) {
        for id in self.served(key) {
            let Some(waiter) = self.waiters.get(&id).filter(|waiter| waiter.size_unchecked) else {
                continue;
            };
            let is_unchecked = self.awaits_resumption(waiter);
            if let Some(waiter) = self.waiters.get_mut(&id) {
                waiter.size_unchecked = is_unchecked;
            }
        }
    }

    /// Changes a stored setting of a lock. Its waiters are queued again, because their capacity may
    /// change, and they may become parked or active.
    pub(crate) fn change_setting(&mut self, key: &Key, change: impl FnOnce(&mut Lock)) {
        let waiters = self.served(key);
        waiters.iter().for_each(|id| self.dequeue(*id));
        self.tree.change_lock(key, change);
        waiters.iter().for_each(|id| self.enqueue(*id));
    }

    /// Requeues the waiters of a frame's session that become parked or active because the session
    /// can now share different slots of some keys.
    pub(crate) fn requeue_session<'k>(
        &mut self,
        frame: FrameId,
        mut keys: impl Iterator<Item = &'k Key>,
    ) {
        let session = self.session(frame);
        let waits = self.sessions.get(&session).is_some_and(|session| session.waiters > 0);
        if !waits || !keys.any(|key| self.may_park(key)) {
            return;
        }
        let waiters = self.waiters_of_session(session).filter_map(|id| self.waiters.get(&id));
        let changed = waiters.filter(|waiter| self.must_rest(waiter) != self.is_inactive(waiter));
        let changed: Vec<RequestId> = changed.map(|waiter| waiter.id).collect();
        for id in changed {
            self.dequeue(id);
            self.enqueue(id);
        }
    }

    /// Whether a waiter for a key can be parked, or would be if it could not share slots.
    fn may_park(&self, key: &Key) -> bool {
        self.tree.node(key).is_some_and(|node| {
            let barriers = node.lock.queue.barriers().map(|(_, class)| class);
            let mut classes = node.lock.queue.classes().chain(barriers);
            node.lock.paused
                || !node.inactive.is_empty()
                || classes.any(|class| class.count > class.capacity)
        })
    }

    /// The active waiters among these, in queue order.
    pub(crate) fn in_order(&self, requests: BTreeSet<RequestId>) -> Vec<RequestId> {
        let waiters = requests.into_iter().filter_map(|request| self.waiters.get(&request));
        let active = waiters
            .filter(|waiter| waiter.status == WaiterStatus::Active && !self.is_inactive(waiter));
        let mut active: Vec<Rank> = active.map(|waiter| Rank::of(waiter)).collect();
        active.sort_unstable();
        active.into_iter().map(|rank| rank.request).collect()
    }
}
