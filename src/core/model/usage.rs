//! How much of the table each user takes up.

use super::{Item, Key};

/// What the requests of a user take up together, held or waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many leases are held.
    pub leases: usize,
    /// How much room the keys take: see [`key_room`].
    pub key_bytes: usize,
}

/// How much room a key takes in a request: its length, and a flat amount for what is stored with
/// it.
#[must_use]
pub fn key_room(key: &Key) -> usize {
    key.as_str().len() + 64
}

/// How much room the keys of these items take.
#[must_use]
pub fn room_of(items: &[Item]) -> usize {
    items.iter().map(|item| key_room(&item.key)).sum()
}
