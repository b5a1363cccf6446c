//! How much of the table each user takes up.

use super::{Item, Key};

/// The held and waiting requests of one user, in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of held leases.
    pub leases: usize,
    /// The room that the keys take; see [`key_room`].
    pub key_bytes: usize,
}

/// The room that a key takes in a request: its length, plus a flat amount for the data stored with
/// it.
#[must_use]
pub fn key_room(key: &Key) -> usize {
    key.as_str().len() + 64
}

/// The room that the keys of these items take.
#[must_use]
pub fn room_of(items: &[Item]) -> usize {
    items.iter().map(|item| key_room(&item.key)).sum()
}
