//! The queues of the keys: the place of each waiter, and the settings of a key that move it.

use std::collections::BTreeSet;

use crate::index::grant_order::Rank;
use crate::{FrameId, Key, Mode, Refusal, RequestId, Setting, Table, WaiterState, WaiterStatus};

impl Table {
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
    pub(crate) fn enqueue(&mut self, id: RequestId) {
        let rests = self.waiters.get(&id).is_some_and(|waiter| self.must_rest(waiter));
        self.change_queues(id, rests, true);
    }

    /// Removes a waiter from the queues of its keys.
    pub(crate) fn dequeue(&mut self, id: RequestId) {
        let rests = self.waiters.get(&id).is_some_and(|waiter| self.is_inactive(waiter));
        self.change_queues(id, rests, false);
    }

    /// Adds a waiter to the queues of its keys, or to their inactive waiters, or removes it there.
    fn change_queues(&mut self, id: RequestId, rests: bool, is_added: bool) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let rank = Rank::of(waiter);
        for item in &waiter.request.items {
            self.tree.change_waiter(item, rank, rests, is_added);
        }
    }

    /// The requests that wait for a key, in queue order.
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
    pub(crate) fn awaits_resumption(&self, waiter: &WaiterState) -> bool {
        matches!(self.misfit(&self.contender(waiter)), Some(Refusal::Paused { .. }))
    }

    /// Changes a stored setting of a lock. Its waiters are queued again, because their capacity may
    /// change, and they may become parked or active.
    pub(crate) fn change_setting(&mut self, key: &Key, setting: &Setting) {
        let waiters = self.served(key);
        waiters.iter().for_each(|id| self.dequeue(*id));
        self.tree.change_lock(key, |lock| lock.settings.set(setting));
        waiters.iter().for_each(|id| self.enqueue(*id));
        if !matches!(setting, Setting::Paused(_)) {
            return;
        }
        // Some may still wait for another key to be resumed before their sizes are checked.
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
            let mut classes = node.lock.queue.keys();
            node.lock.settings.paused
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
