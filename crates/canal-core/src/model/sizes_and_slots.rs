//! The size of a counted lock as a caller sees it, and the slot numbers of a hold.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The largest size of a lock, and the largest number in a size. The JSON of every language
/// represents numbers up to this exactly.
pub const NUMBER_MAX: u64 = (1 << 53) - 1;

/// The most slots of one request. Replies and reports list the number of every slot.
pub const SLOTS_MAX: u64 = 65_536;

/// The capacity of a counted lock: as a caller states it in a request, or as an operator stored it
/// for everyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum View {
    /// `per` slots for each of `buckets` backends. Every request takes slots, even from a process
    /// that already holds the lock.
    Buckets {
        /// Slots per bucket, at least 1.
        per: u64,
        /// The number of buckets; 0 admits no request.
        buckets: u64,
    },
    /// The slots of a lock that is re-entrant for its owner.
    Slots {
        /// The number of slots, at least 1.
        slots: u64,
    },
}

/// The two kinds of counted lock, which differ only in re-entrancy. A key has one kind while it is
/// in use or has a stored view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `--per`/`--buckets`: not re-entrant.
    Buckets,
    /// `--slots`: re-entrant.
    Slots,
}

impl View {
    /// The view of a request without one, where nothing else defines the size of the lock.
    pub const ONE: Self = Self::Slots { slots: 1 };

    /// The number of slots at once; saturates at `u64::MAX`.
    pub fn capacity(self) -> u64 {
        match self {
            Self::Buckets { per, buckets } => per.saturating_mul(buckets),
            Self::Slots { slots } => slots,
        }
    }

    /// The number of slots in each bucket; 1 for the slots kind.
    pub fn unit(self) -> u64 {
        if let Self::Buckets { per, .. } = self { per.max(1) } else { 1 }
    }

    /// The kind of lock that this view describes.
    pub fn kind(self) -> Kind {
        match self {
            Self::Buckets { .. } => Kind::Buckets,
            Self::Slots { .. } => Kind::Slots,
        }
    }

    /// The bucket that contains a slot; `None` for the slots kind.
    pub fn bucket(self, slot: u64) -> Option<u64> {
        if let Self::Buckets { per, .. } = self { slot.checked_div(per) } else { None }
    }
}

/// As status and messages show it: `3x2` or `4`.
impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buckets { per, buckets } => write!(f, "{per}x{buckets}"),
            Self::Slots { slots } => write!(f, "{slots}"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Buckets => "buckets",
            Self::Slots => "slots",
        })
    }
}

/// The slots `first ..= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotRange(pub u64, pub u64);

/// A set of slot numbers: ascending ranges that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slots(pub Vec<SlotRange>);

impl Slots {
    /// The number of slots.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|range| range.1 - range.0 + 1).sum()
    }

    /// The slot numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|range| range.0..=range.1)
    }

    /// The first `count` slots of some ranges.
    pub(crate) fn first_of(ranges: impl Iterator<Item = SlotRange>, count: u64) -> Self {
        let (mut slots, mut missing) = (Vec::with_capacity(1), count);
        for SlotRange(first, last) in ranges {
            if missing == 0 {
                break;
            }
            let here = missing.min(last - first + 1);
            slots.push(SlotRange(first, first + (here - 1)));
            missing -= here;
        }
        Self(slots)
    }

    /// The lowest `count` slots.
    pub(crate) fn lowest(&self, count: u64) -> Self {
        Self::first_of(self.0.iter().copied(), count)
    }

    /// The set without its lowest `count` slots.
    pub(crate) fn without_lowest(&self, count: u64) -> Self {
        let from = self.lowest(count).0.last().map_or(0, |range| range.1 + 1);
        let rest = self.0.iter().filter(|range| range.1 >= from);
        Self(rest.map(|range| SlotRange(range.0.max(from), range.1)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_splits_at_any_count() {
        let slots = Slots(vec![SlotRange(1, 2), SlotRange(5, 7)]);
        assert_eq!(slots.lowest(3), Slots(vec![SlotRange(1, 2), SlotRange(5, 5)]));
        assert_eq!(slots.without_lowest(3), Slots(vec![SlotRange(6, 7)]));
        assert_eq!(slots.lowest(0), Slots::default());
        assert_eq!(slots.without_lowest(5), Slots::default());
        assert_eq!(slots.count(), 5);
    }
}
