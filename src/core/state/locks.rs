//! Counted locks: their uses and their views.

use crate::core::index::lock::Lock;
use crate::core::model::InvalidOutcome;
use crate::core::{Change, Entry, Key, Mode, Request, Table, View};

impl Table {
    /// Counts a use of the lock of each counted item of a request.
    pub(in crate::core) fn use_locks(&mut self, asked: &Request) {
        for item in asked.items.iter().filter(|item| item.ask.mode() == Mode::Counted) {
            self.tree.change_lock(&item.key, |lock| lock.use_by(&item.ask));
        }
    }

    pub(in crate::core) fn remove_use(&mut self, key: &Key, mode: Mode) {
        if mode == Mode::Counted {
            self.tree.change_lock(key, Lock::remove_use);
        }
    }

    pub(in crate::core) fn store_view(&mut self, entry: &Entry) -> Result<(), InvalidOutcome> {
        let Change::Resize { key, view } = &entry.change else {
            return Err("a view was stored by an entry that is no resize".to_owned().into());
        };
        let waiters = self.served(key);
        for id in &waiters {
            self.save_overtaken(*id);
            self.dequeue(*id);
        }
        self.tree.change_lock(key, |lock| {
            lock.stored = *view;
            if lock.uses > 0 && view.is_some() {
                lock.own = *view;
            }
        });
        for id in &waiters {
            self.enqueue(*id);
        }
        Ok(())
    }

    /// The view that applies to a counted item of a key.
    pub(in crate::core) fn view_of(&self, key: &Key, stated: Option<View>) -> Option<View> {
        Lock::view_of(self.tree.lock(key), stated)
    }
}
