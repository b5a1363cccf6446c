//! The slot numbers of a hold, as ranges: a million slots cost as much as one.

use serde::{Deserialize, Serialize};

/// The slots `first ..= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotRange(pub u64, pub u64);

/// A set of slot numbers: ascending ranges that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slots(pub Vec<SlotRange>);

impl Slots {
    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of slots.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|range| range.1 - range.0 + 1).sum()
    }

    /// The slot numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|range| range.0..=range.1)
    }

    /// The slot numbers as a list.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u64> {
        let mut numbers = Vec::with_capacity(self.count() as usize);
        self.0.iter().for_each(|range| numbers.extend(range.0..=range.1));
        numbers
    }

    /// The union of some sets.
    pub(crate) fn together<'a>(sets: impl Iterator<Item = &'a Self>) -> Self {
        let mut ranges: Vec<SlotRange> = sets.flat_map(|slots| slots.0.iter().copied()).collect();
        ranges.sort_unstable();
        let mut together: Vec<SlotRange> = Vec::new();
        for SlotRange(first, last) in ranges {
            match together.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last);
                }
                _ => together.push(SlotRange(first, last)),
            }
        }
        Self(together)
    }

    /// The set without its lowest `count` slots.
    #[must_use]
    pub(crate) fn without_lowest(&self, count: u64) -> Self {
        self.split(count).1
    }

    /// The lowest `count` slots.
    #[must_use]
    pub(crate) fn lowest(&self, count: u64) -> Self {
        self.split(count).0
    }

    fn split(&self, count: u64) -> (Self, Self) {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        let mut missing = count;
        for &SlotRange(first, last) in &self.0 {
            let length = last - first + 1;
            let here = length.min(missing);
            missing -= here;
            if here > 0 {
                low.push(SlotRange(first, first + (here - 1)));
            }
            if here < length {
                high.push(SlotRange(first + here, last));
            }
        }
        (Self(low), Self(high))
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

    #[test]
    fn a_slot_in_several_sets_is_counted_once() {
        let sets = [Slots(vec![SlotRange(1, 2), SlotRange(5, 7)]), Slots(vec![SlotRange(1, 5)])];
        assert_eq!(Slots::together(sets.iter()), Slots(vec![SlotRange(1, 7)]));
        assert_eq!(Slots::together(sets[..1].iter()), sets[0]);
        assert!(Slots::together([].iter()).is_empty());
    }
}
