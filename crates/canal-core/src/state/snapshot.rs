//! Conversion between the table and plain data.

use crate::index::lock::Lock;
use crate::model::InvalidOutcome;
use crate::{Diverged, Key, Snapshot, StoredView, StoredWithout, Table};

impl Table {
    /// The table as plain data.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let locks = || self.tree.locks();
        let stored = |(key, lock): (&Key, &Lock)| {
            lock.stored.map(|view| StoredView { key: key.clone(), view })
        };
        let without = |(key, lock): (&Key, &Lock)| {
            let numbers = lock.without.numbers();
            (!numbers.is_empty()).then(|| StoredWithout { key: key.clone(), numbers })
        };
        let paused = |(key, lock): (&Key, &Lock)| lock.paused.then(|| key.clone());
        Snapshot {
            revision: self.revision,
            next_token: self.next_token,
            bypass_max: self.bypass_max,
            views: locks().filter_map(stored).collect(),
            paused: locks().filter_map(paused).collect(),
            without: locks().filter_map(without).collect(),
            hosts: self.hosts().cloned().collect(),
            frames: self.frames().cloned().collect(),
            holds: self.holds().cloned().collect(),
            waiters: self.waiters().cloned().collect(),
            past_leases: self.past_leases.iter().cloned().collect(),
            superseded: self.superseded.iter().cloned().collect(),
            era: self.era,
            longest_ttl_ms: self.longest_ttl_ms,
            untold_below: self.untold_below,
            recovery: self.recovery.clone(),
        }
    }

    /// The table that a snapshot describes.
    ///
    /// # Errors
    /// The snapshot contradicts itself: it has a slot twice, or lacks a frame.
    pub fn restore(snapshot: &Snapshot) -> Result<Self, Diverged> {
        let revision = snapshot.revision;
        let mut table = Self {
            revision,
            next_token: snapshot.next_token,
            bypass_max: snapshot.bypass_max,
            past_leases: snapshot.past_leases.iter().cloned().collect(),
            superseded: snapshot.superseded.iter().cloned().collect(),
            hosts: snapshot.hosts.iter().map(|host| (host.id, host.clone())).collect(),
            era: snapshot.era,
            longest_ttl_ms: snapshot.longest_ttl_ms,
            untold_below: snapshot.untold_below,
            recovery: snapshot.recovery.clone(),
            ..Self::default()
        };
        table.refill(snapshot).map_err(|error| Diverged { revision, what: error.0 })?;
        Ok(table)
    }

    fn refill(&mut self, snapshot: &Snapshot) -> Result<(), InvalidOutcome> {
        for StoredView { key, view } in &snapshot.views {
            self.tree.change_lock(key, |lock| lock.stored = Some(*view));
        }
        for key in &snapshot.paused {
            self.tree.change_lock(key, |lock| lock.paused = true);
        }
        for StoredWithout { key, numbers } in &snapshot.without {
            self.tree.change_lock(key, |lock| lock.without.change(numbers, true));
        }
        for frame in &snapshot.frames {
            self.add_frame(frame.clone());
        }
        for hold in &snapshot.holds {
            self.take_slots(hold.token, &hold.items, |lock, at| {
                if let Some(view) = hold.items[at].view {
                    lock.use_as(view.kind());
                }
            })?;
            self.add_hold(hold.clone())?;
        }
        for waiter in &snapshot.waiters {
            self.use_locks(&waiter.request);
        }
        snapshot.waiters.iter().try_for_each(|waiter| self.add_waiter(waiter.clone()))
    }
}
