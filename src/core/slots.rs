//! Slot numbers of a hold, kept as ranges so that a million of them cost as much as one.

use serde::{Deserialize, Serialize};

/// The slots `first ..= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotRange(pub u64, pub u64);

/// A set of slot numbers: ascending ranges that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slots(pub Vec<SlotRange>);

impl Slots {
    /// How many slots there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|range| range.1 - range.0 + 1).sum()
    }

    /// The slot numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|range| range.0..=range.1)
    }
}
