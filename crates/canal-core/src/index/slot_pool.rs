//! Tracks which slots of a key are free.

use std::collections::BTreeMap;

use crate::{SlotRange, Slots};

/// The free slots of a key: all slots from `high` on, and the ranges below `high` that were
/// released.
///
/// The lowest free slots are found in time logarithmic in the number of ranges, regardless of the
/// number of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotPool {
    /// Maps the first slot of each free range below `high` to its last.
    ranges: BTreeMap<u64, u64>,
    /// The lowest slot above every slot in use.
    high: u64,
}

impl SlotPool {
    /// The lowest `count` free slots. The caller has checked that `count` slots are free.
    pub(crate) fn lowest(&self, count: u64) -> Slots {
        let mut lowest = Vec::with_capacity(1);
        let mut missing = count;
        for (&first, &last) in &self.ranges {
            if missing == 0 {
                break;
            }
            let used = missing.min(last - first + 1);
            lowest.push(SlotRange(first, first + (used - 1)));
            missing -= used;
        }
        if missing > 0 {
            lowest.push(SlotRange(self.high, self.high + (missing - 1)));
        }
        Slots(lowest)
    }

    /// The first free slots at or above `from`, up to the end of their range.
    pub(crate) fn free_from(&self, from: u64) -> SlotRange {
        let around = self.ranges.range(..=from).next_back().filter(|(_, last)| **last >= from);
        let next = || self.ranges.range(from..).next();
        match around.or_else(next) {
            Some((&first, &last)) => SlotRange(first.max(from), last),
            None => SlotRange(self.high.max(from), u64::MAX - 1),
        }
    }

    /// The slots that are held, as ranges.
    pub(crate) fn held_ranges(&self) -> impl Iterator<Item = SlotRange> {
        let firsts = std::iter::once(0).chain(self.ranges.values().map(|last| last + 1));
        let ends = self.ranges.keys().copied().chain(std::iter::once(self.high));
        let held = firsts.zip(ends).filter(|(first, end)| first < end);
        held.map(|(first, end)| SlotRange(first, end - 1))
    }

    /// How many slots of a range are held.
    pub(crate) fn held_in(&self, SlotRange(first, last): SlotRange) -> u64 {
        let (mut held, mut from) = (0, first);
        while from <= last {
            let free = self.free_from(from);
            held += free.0.min(last.saturating_add(1)) - from;
            from = free.1.saturating_add(1);
        }
        held
    }

    /// Takes exactly these slots. Takes nothing and returns false if one of them is not free.
    pub(crate) fn take(&mut self, slots: &Slots) -> bool {
        let free = slots.0.iter().all(|range| self.is_free(*range));
        let apart = slots.0.windows(2).all(|pair| pair[0].1 < pair[1].0);
        if free && apart {
            slots.0.iter().for_each(|range| self.take_range(*range));
        }
        free && apart
    }

    fn is_free(&self, SlotRange(first, last): SlotRange) -> bool {
        if last < first || last == u64::MAX {
            return false;
        }
        // No free range reaches up to `high`: `give_back` lowers `high` instead.
        first >= self.high
            || self.ranges.range(..=first).next_back().is_some_and(|(_, end)| *end >= last)
    }

    fn take_range(&mut self, SlotRange(first, last): SlotRange) {
        if first >= self.high {
            if first > self.high {
                self.ranges.insert(self.high, first - 1);
            }
            self.high = last + 1;
            return;
        }
        let Some((&start, &end)) = self.ranges.range(..=first).next_back() else { return };
        self.ranges.remove(&start);
        if start < first {
            self.ranges.insert(start, first - 1);
        }
        if last < end {
            self.ranges.insert(last + 1, end);
        }
    }

    /// Releases slots that were taken.
    pub(crate) fn give_back(&mut self, slots: &Slots) {
        for range in &slots.0 {
            self.give_back_range(*range);
        }
    }

    fn give_back_range(&mut self, SlotRange(mut first, mut last): SlotRange) {
        if let Some((&start, &end)) = self.ranges.range(..first).next_back()
            && end + 1 == first
        {
            self.ranges.remove(&start);
            first = start;
        }
        if let Some(end) = self.ranges.remove(&(last + 1)) {
            last = end;
        }
        if last + 1 == self.high {
            self.high = first;
        } else {
            self.ranges.insert(first, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn slots(slots: &Slots) -> Vec<u64> {
        slots.iter().collect()
    }

    fn take_lowest(free: &mut SlotPool, count: u64) -> Slots {
        let lowest = free.lowest(count);
        assert!(free.take(&lowest));
        lowest
    }

    #[test]
    fn the_lowest_free_slots_are_taken_first() {
        let mut free = SlotPool::default();
        assert_eq!(slots(&take_lowest(&mut free, 3)), [0, 1, 2]);
        free.give_back(&Slots(vec![SlotRange(1, 1)]));
        assert_eq!(slots(&take_lowest(&mut free, 2)), [1, 3]);
    }

    #[test]
    fn a_million_slots_are_one_range() {
        let mut free = SlotPool::default();
        let all = take_lowest(&mut free, 1_000_000);
        assert_eq!(all.0, [SlotRange(0, 999_999)]);
        free.give_back(&all);
        assert_eq!(free, SlotPool::default());
    }

    #[test]
    fn taking_a_slot_in_use_takes_nothing() {
        let mut free = SlotPool::default();
        take_lowest(&mut free, 2);
        let before = free.clone();
        assert!(!free.take(&Slots(vec![SlotRange(5, 6), SlotRange(1, 1)])));
        assert_eq!(free, before);
    }

    proptest! {
        #[test]
        fn it_equals_a_set_of_numbers(ops in prop::collection::vec((any::<bool>(), 1u64..5, 0usize..8), 1..60)) {
            let mut free = SlotPool::default();
            let mut used = BTreeSet::new();
            let mut taken: Vec<Slots> = Vec::new();
            for (take, count, which) in ops {
                if take {
                    let got = take_lowest(&mut free, count);
                    let expected: Vec<u64> =
                        (0..).filter(|slot| !used.contains(slot)).take(usize::try_from(count).unwrap()).collect();
                    prop_assert_eq!(slots(&got), expected);
                    used.extend(got.iter());
                    taken.push(got);
                } else if which < taken.len() {
                    let back = taken.remove(which);
                    for slot in back.iter() {
                        used.remove(&slot);
                    }
                    free.give_back(&back);
                }
                let mut rebuilt = SlotPool::default();
                for hold in &taken {
                    prop_assert!(rebuilt.take(hold));
                }
                prop_assert_eq!(&rebuilt, &free);
                let held: Vec<u64> =
                    free.held_ranges().flat_map(|range| range.0..=range.1).collect();
                prop_assert_eq!(&held, &used.iter().copied().collect::<Vec<_>>());
                for (first, last) in [(0, 50), (which as u64, 9), (3, 3), (7, 2)] {
                    let expected = used.range(first.min(last)..=last.max(first)).count() as u64;
                    let range = SlotRange(first.min(last), last.max(first));
                    prop_assert_eq!(free.held_in(range), expected);
                    let next = (first..).find(|slot| !used.contains(slot));
                    prop_assert_eq!(Some(free.free_from(first).0), next);
                }
            }
        }
    }
}
