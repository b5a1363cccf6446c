//! Conversion between the table and plain data.

use crate::{Diverged, Key, Result, Settings, Snapshot, Table};

impl Table {
    /// The table as plain data.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            frames: self.frames().cloned().collect(),
            holds: self.holds().cloned().collect(),
            waiters: self.waiters().cloned().collect(),
            globals: self.globals.clone(),
            settings: self.stored_settings().map(|(key, it)| (key.clone(), it.clone())).collect(),
        }
    }

    /// The keys with stored settings, in order.
    pub fn stored_settings(&self) -> impl Iterator<Item = (&Key, &Settings)> {
        self.tree.settings().filter(|(_, settings)| !settings.is_default())
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

    fn refill(&mut self, snapshot: &Snapshot) -> Result {
        for (key, settings) in &snapshot.settings {
            self.tree.change_lock(key, |lock| lock.settings = settings.clone());
        }
        for frame in &snapshot.frames {
            self.add_frame(frame.clone());
        }
        for hold in &snapshot.holds {
            self.take_slots(hold.token, &hold.items)?;
            self.add_hold(hold.clone())?;
        }
        snapshot.waiters.iter().try_for_each(|waiter| self.add_waiter(waiter.clone()))
    }
}
