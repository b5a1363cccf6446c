//! Waiters: they are queued, change their place and their status, and leave.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::frames::with_parent;
use crate::index::grant_order::{Class, Rank};
use crate::index::key_tree::KeyTree;
use crate::index::lock::Lock;
use crate::model::InvalidOutcome;
use crate::{
    Ask, Change, Entry, FrameId, Key, Mode, PastRequest, Refusal, Request, RequestId,
    SUPERSEDED_MAX, Table, Tag, WaiterState, WaiterStatus, room_of,
};

impl Table {
    pub(crate) fn queue_up(
        &mut self,
        entry: &Entry,
        id: RequestId,
        frame: FrameId,
    ) -> Result<(), InvalidOutcome> {
        let asked = self.stored_form(self.asked(entry, id)?);
        self.open_frame(frame, &asked)?;
        self.use_locks(&asked);
        let size_unchecked = self.awaits_resumption(&asked, frame);
        self.add_waiter(WaiterState {
            id,
            request: with_parent(asked, self.parent_of(frame)),
            frame,
            since: entry.at,
            status: WaiterStatus::Active,
            barrier: false,
            passed: 0,
            size_unchecked,
        })
    }

    pub(crate) fn asked<'e>(
        &self,
        entry: &'e Entry,
        id: RequestId,
    ) -> Result<&'e Arc<Request>, InvalidOutcome> {
        match &entry.change {
            Change::Request(request) if id.0 == self.revision.0 => Ok(request),
            _ => Err(format!("request {id} is unknown").into()),
        }
    }

    /// Adds a waiter whose frame exists and is already counted by its locks.
    pub(crate) fn add_waiter(&mut self, waiter: WaiterState) -> Result<(), InvalidOutcome> {
        let (id, frame) = (waiter.id, waiter.frame);
        let owner = self.frames.get_mut(&frame).ok_or_else(|| format!("no frame {frame}"))?;
        owner.waiters.insert(id);
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
    pub(crate) fn remove_waiter(&mut self, id: RequestId) -> Result<WaiterState, InvalidOutcome> {
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

    pub(crate) fn raise_barrier(&mut self, id: RequestId) -> Result<(), InvalidOutcome> {
        self.dequeue(id);
        let waiter =
            self.waiters.get_mut(&id).ok_or_else(|| format!("request {id} is not waiting"))?;
        waiter.barrier = true;
        self.enqueue(id);
        Ok(())
    }

    pub(crate) fn prioritized(
        &mut self,
        entry: &Entry,
        id: RequestId,
    ) -> Result<(), InvalidOutcome> {
        let Change::Prioritize { priority, .. } = entry.change else {
            return Err("an entry that is no `prioritize` changed a priority".to_owned().into());
        };
        self.dequeue(id);
        let waiter =
            self.waiters.get_mut(&id).ok_or_else(|| format!("request {id} is not waiting"))?;
        Arc::make_mut(&mut waiter.request).priority = priority;
        self.enqueue(id);
        Ok(())
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
        let useless = status == WaiterStatus::Suspended && waiter.status != WaiterStatus::Active;
        if waiter.status == status || useless {
            return;
        }
        self.dequeue(id);
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.status = status;
        }
        self.enqueue(id);
    }

    /// The rank of a waiter.
    pub(crate) fn rank(&self, waiter: &WaiterState) -> Rank {
        if waiter.barrier {
            Rank::barrier(waiter.id)
        } else {
            Rank::ordinary(waiter.request.priority, waiter.id)
        }
    }

    /// Whether a waiter is inactive, and so in no queue: its process is stopped, or it is parked
    /// because a key is paused or the applicable view is too small for it.
    pub(crate) fn is_inactive(&self, waiter: &WaiterState) -> bool {
        let first = waiter.request.items.first();
        let node = first.and_then(|item| self.tree.node(&item.key));
        node.is_some_and(|node| node.inactive.contains(&waiter.id))
    }

    /// Adds a waiter to the queues of its keys, according to its status and rank.
    pub(crate) fn enqueue(&mut self, request: RequestId) {
        let Some(waiter) = self.waiters.get(&request) else { return };
        let (rank, inactive) = (self.rank(waiter), self.must_rest(waiter));
        for item in &waiter.request.items {
            if inactive {
                self.tree.add_inactive(&item.key, request);
                continue;
            }
            self.tree.add_waiter(&item.key, item.ask.mode(), rank);
            let Some((lock, class)) = lock_and_class(&mut self.tree, &item.key, &item.ask) else {
                continue;
            };
            if waiter.barrier {
                lock.queue.insert_barrier(request, class);
            } else {
                lock.queue.insert(class, rank);
            }
        }
    }

    /// Removes a waiter from the queues of its keys.
    pub(crate) fn dequeue(&mut self, request: RequestId) {
        let Some(waiter) = self.waiters.get(&request) else { return };
        let (rank, inactive) = (self.rank(waiter), self.is_inactive(waiter));
        for item in &waiter.request.items {
            if inactive {
                self.tree.remove_inactive(&item.key, request);
                continue;
            }
            self.tree.remove_waiter(&item.key, item.ask.mode(), rank);
            let Some((lock, class)) = lock_and_class(&mut self.tree, &item.key, &item.ask) else {
                continue;
            };
            if waiter.barrier {
                lock.queue.remove_barrier(request);
            } else {
                lock.queue.remove(class, rank);
            }
        }
    }

    /// The class of each item of a waiter, with its key.
    pub(crate) fn classes<'a>(
        &'a self,
        request: &'a Request,
    ) -> impl Iterator<Item = (&'a Key, &'a Lock, Class)> {
        request.items.iter().filter_map(|item| {
            let lock = self.tree.lock(&item.key)?;
            Some((&item.key, lock, class(lock, &item.ask)?))
        })
    }

    /// The requests that wait for a key, in queue order.
    #[must_use]
    pub fn served(&self, key: &Key) -> Vec<RequestId> {
        let inactive = self.tree.node(key).into_iter().flat_map(|node| &node.inactive);
        let inactive =
            inactive.filter_map(|id| self.waiters.get(id)).map(|waiter| self.rank(waiter));
        let reads = self.tree.waiting_here(key, Mode::Read);
        let mut all: Vec<Rank> =
            reads.chain(self.tree.waiting_here(key, Mode::Write)).chain(inactive).collect();
        all.sort_unstable();
        all.into_iter().map(|rank| rank.request).collect()
    }

    /// Whether a waiter belongs in no queue: its process is stopped, or it is parked.
    pub(crate) fn must_rest(&self, waiter: &WaiterState) -> bool {
        waiter.status == WaiterStatus::Suspended
            || self.misfit(&waiter.request, &self.lineage(waiter.frame, None)).is_some()
    }

    pub(crate) fn store_view(&mut self, entry: &Entry) -> Result<(), InvalidOutcome> {
        let Change::Resize { key, view } = &entry.change else {
            return Err("an entry other than a resize stored a size".to_owned().into());
        };
        self.change_setting(key, |lock| lock.stored = *view);
        Ok(())
    }

    pub(crate) fn store_pause(&mut self, entry: &Entry) -> Result<(), InvalidOutcome> {
        let Change::Pause { key, paused } = &entry.change else {
            return Err("an entry other than a pause paused a key".to_owned().into());
        };
        self.change_setting(key, |lock| lock.paused = *paused);
        for id in self.served(key) {
            let Some(waiter) = self.waiters.get(&id).filter(|waiter| waiter.size_unchecked) else {
                continue;
            };
            let unchecked = self.awaits_resumption(&waiter.request, waiter.frame);
            if let Some(waiter) = self.waiters.get_mut(&id) {
                waiter.size_unchecked = unchecked;
            }
        }
        Ok(())
    }

    pub(crate) fn store_service(&mut self, entry: &Entry) -> Result<(), InvalidOutcome> {
        let Change::Service { key, numbers, out } = &entry.change else {
            return Err("buckets left service by an entry of another kind".to_owned().into());
        };
        self.change_setting(key, |lock| lock.without.change(numbers, *out));
        Ok(())
    }

    /// Changes a stored setting of a lock. Its waiters are queued again, because their capacity may
    /// change, and they may become parked or active.
    fn change_setting(&mut self, key: &Key, change: impl FnOnce(&mut Lock)) {
        let waiters = self.served(key);
        for id in &waiters {
            self.dequeue(*id);
        }
        self.tree.change_lock(key, change);
        for id in &waiters {
            self.enqueue(*id);
        }
    }

    /// Requeues the waiters of a frame's session that become parked or active because the session
    /// can now share different slots of some keys.
    pub(crate) fn requeue_session<'k>(
        &mut self,
        frame: FrameId,
        mut keys: impl Iterator<Item = &'k Key>,
    ) {
        let session = self.sessions.get(&self.session(frame));
        let waits = session.is_some_and(|session| session.waiters > 0);
        if !waits || !keys.any(|key| self.may_park(key)) {
            return;
        }
        let frames = session.into_iter().flat_map(|session| &session.frames);
        let waiters = frames.filter_map(|frame| self.frames.get(frame)).flat_map(|it| &it.waiters);
        let waiters = waiters.filter_map(|id| self.waiters.get(id));
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
            let is_small = |class: Class| class.count > class.capacity;
            node.lock.paused || !node.inactive.is_empty() || classes.any(is_small)
        })
    }

    /// The active waiters among these, in queue order.
    pub(crate) fn in_order(&self, requests: BTreeSet<RequestId>) -> Vec<RequestId> {
        let waiters = requests.into_iter().filter_map(|request| self.waiters.get(&request));
        let mut active: Vec<(Rank, RequestId)> = waiters
            .filter(|waiter| waiter.status == WaiterStatus::Active && !self.is_inactive(waiter))
            .map(|waiter| (self.rank(waiter), waiter.id))
            .collect();
        active.sort_unstable();
        active.into_iter().map(|(_, request)| request).collect()
    }
}

/// The class of a counted item; `None` for reads and writes.
fn class(lock: &Lock, ask: &Ask) -> Option<Class> {
    let (count, own) = ask.counted()?;
    Some(lock.class_of(count, own))
}

fn lock_and_class<'a>(
    tree: &'a mut KeyTree,
    key: &Key,
    ask: &Ask,
) -> Option<(&'a mut Lock, Class)> {
    let lock = tree.lock_mut(key)?;
    let class = class(lock, ask)?;
    Some((lock, class))
}
