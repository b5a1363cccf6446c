//! Conversion between the table and plain data.

use crate::index::counted_lock::Lock;
use crate::{Diverged, Globals, Key, Snapshot, Table};

impl Table {
    /// The table as plain data.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            frames: self.frames().cloned().collect(),
            holds: self.holds().cloned().collect(),
            waiters: self.waiters().cloned().collect(),
            globals: self.globals.clone(),
            ..self.outline(self.tree.locks())
        }
    }

    /// A snapshot that contains only the settings of the table and of some locks.
    pub(crate) fn outline<'a>(&self, locks: impl Iterator<Item = (&'a Key, &'a Lock)>) -> Snapshot {
        let Globals { revision, next_token, bypass_max, .. } = self.globals;
        let globals = Globals { revision, next_token, bypass_max, ..Globals::default() };
        let stored = locks.filter(|(_, lock)| !lock.settings.is_default());
        let settings = stored.map(|(key, lock)| (key.clone(), lock.settings.clone())).collect();
        Snapshot { globals, settings, ..Snapshot::default() }
    }

    /// The table that a snapshot describes.
    ///
    /// # Errors
    /// The snapshot contradicts itself: it has a slot twice, or lacks a frame.
    pub fn restore(snapshot: &Snapshot) -> Result<Self, Diverged> {
        let revision = snapshot.globals.revision;
        let mut table = Self { globals: snapshot.globals.clone(), ..Self::default() };
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
