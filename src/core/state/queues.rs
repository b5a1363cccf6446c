//! The queues of the keys: where each waiter stands in them.

use crate::core::index::grant_order::{Class, Rank};
use crate::core::index::key_tree::KeyTree;
use crate::core::index::lock::Lock;
use crate::core::{Ask, Key, Request, RequestId, Table, WaiterState};

impl Table {
    /// The rank of a waiter.
    pub(in crate::core) fn rank(&self, waiter: &WaiterState) -> Rank {
        if waiter.barrier {
            Rank::barrier(waiter.id)
        } else {
            Rank::ordinary(waiter.request.priority, waiter.id)
        }
    }

    /// Whether a waiter is inactive, so that it is in no queue: its process is stopped, or it is
    /// parked, because a key is paused or the view that counts is too small for it.
    pub(in crate::core) fn is_inactive(&self, waiter: &WaiterState) -> bool {
        let first = waiter.request.items.first();
        let node = first.and_then(|item| self.tree.node(&item.key));
        node.is_some_and(|node| node.inactive.contains(&waiter.id))
    }

    /// Adds a waiter to the queues of its keys, as its status and rank demand.
    pub(in crate::core) fn enqueue(&mut self, request: RequestId) {
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
    pub(in crate::core) fn dequeue(&mut self, request: RequestId) {
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
    pub(in crate::core) fn classes<'a>(
        &'a self,
        request: &'a Request,
    ) -> impl Iterator<Item = (&'a Key, &'a Lock, Class)> {
        request.items.iter().filter_map(|item| {
            let lock = self.tree.lock(&item.key)?;
            Some((&item.key, lock, class(lock, &item.ask)?))
        })
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
