//! Conversion between the table and plain data.

use crate::index::lock::Lock;
use crate::{Diverged, Key, Snapshot, Table};

impl Table {
    /// The table as plain data.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
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
            ..self.outline(self.tree.locks())
        }
    }

    /// A snapshot that contains only the settings of the table and of some locks.
    pub(crate) fn outline<'a>(&self, locks: impl Iterator<Item = (&'a Key, &'a Lock)>) -> Snapshot {
        let Self { revision, next_token, bypass_max, .. } = *self;
        let stored = locks.filter(|(_, lock)| !lock.settings.is_default());
        let settings = stored.map(|(key, lock)| (key.clone(), lock.settings.clone())).collect();
        Snapshot { revision, next_token, bypass_max, settings, ..Snapshot::default() }
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
        table.refill(snapshot).map_err(|what| Diverged { revision, what })?;
        Ok(table)
    }

    fn refill(&mut self, snapshot: &Snapshot) -> Result<(), String> {
        for (key, settings) in &snapshot.settings {
            self.tree.change_lock(key, |lock| lock.settings = settings.clone());
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
