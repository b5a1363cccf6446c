//! How much of the table each user has.

use super::{Item, Key, Table};

/// What the requests of a user have together, held or waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Leases that are held.
    pub leases: usize,
    /// How much room their keys take: see [`key_room`].
    pub key_bytes: usize,
}

/// How much room a key takes in a request: its length, and as much again as what is kept beside it.
#[must_use]
pub fn key_room(key: &Key) -> usize {
    key.as_str().len() + 64
}

impl Table {
    /// What a user has.
    #[must_use]
    pub fn usage(&self, uid: u32) -> Usage {
        self.usage.get(&uid).copied().unwrap_or_default()
    }

    /// Users of whom nothing is left stay known: most come again.
    pub(super) fn usage_mut(&mut self, uid: u32) -> &mut Usage {
        self.usage.entry(uid).or_default()
    }
}

/// How much room the keys of these items take.
#[must_use]
pub fn room_of(items: &[Item]) -> usize {
    items.iter().map(|item| key_room(&item.key)).sum()
}
