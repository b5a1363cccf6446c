//! Tracks which slots of a key are free and in service, and how many of each bucket are held.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::{OutOfService, SlotRange, Slots, View};

/// The slots of a key that are held; all others are free. The ranges neither touch nor overlap.
///
/// The lowest free slots are found in time logarithmic in the number of ranges, regardless of the
/// number of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotPool {
    /// Maps the first slot of each held range to its last.
    held: BTreeMap<u64, u64>,
}

impl SlotPool {
    /// A pool in which these slots are held; they may overlap.
    pub(crate) fn of<'a>(sets: impl Iterator<Item = &'a Slots>) -> Self {
        let mut pool = Self::default();
        sets.flat_map(|slots| &slots.0).for_each(|range| pool.cover(*range));
        pool
    }

    /// The number of slots that are held.
    pub(crate) fn count(&self) -> u64 {
        self.held.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// The free slots at or above `from`, as ranges.
    pub(crate) fn free_from(&self, from: u64) -> impl Iterator<Item = SlotRange> {
        let around = self.held.range(..=from).next_back();
        let from = around.map_or(from, |(_, last)| from.max(last + 1));
        let above = self.held.range(from..);
        let firsts = std::iter::once(from).chain(above.clone().map(|(_, last)| last + 1));
        let ends = above.map(|(first, _)| first - 1).chain([u64::MAX - 1]);
        firsts.zip(ends).filter_map(|(first, end)| (first <= end).then_some(SlotRange(first, end)))
    }

    /// How many slots of a range are held.
    pub(crate) fn held_in(&self, SlotRange(first, last): SlotRange) -> u64 {
        let around = self.held.range(..=first).next_back().filter(|(_, end)| **end >= first);
        let from = around.map_or(first, |(start, _)| *start);
        let held = self.held.range(from..=last);
        held.map(|(start, end)| end.min(&last) - start.max(&first) + 1).sum()
    }

    /// The bucket in service below `buckets` with the fewest held slots; the lowest such bucket.
    /// Linear in the number of held ranges and of buckets that are out of service.
    pub(crate) fn emptiest(&self, per: u64, buckets: u64, out: &OutOfService) -> Option<u64> {
        // A bucket that contains no end of a held range is full or empty, and the lowest empty one
        // follows one that is held or out of service.
        let near =
            self.held.iter().flat_map(|(first, last)| [first / per, last / per, last / per + 1]);
        let near = near.chain(out.0.iter().map(|bucket| bucket + 1)).chain([0]);
        let in_service = near.filter(|bucket| *bucket < buckets && !out.0.contains(bucket));
        let held = |bucket: u64| {
            let first = bucket.checked_mul(per)?;
            Some((self.held_in(SlotRange(first, first.saturating_add(per - 1))), bucket))
        };
        in_service.filter_map(held).min().map(|(_, bucket)| bucket)
    }

    /// Takes exactly these slots. Takes nothing and returns false if one of them is not free.
    pub(crate) fn take(&mut self, slots: &Slots) -> bool {
        let is_free = |&SlotRange(first, last): &SlotRange| {
            let free = self.free_from(first).next();
            first <= last && free.is_some_and(|free| free.0 == first && free.1 >= last)
        };
        let apart = slots.0.windows(2).all(|pair| pair[0].1 < pair[1].0);
        if !apart || !slots.0.iter().all(is_free) {
            return false;
        }
        slots.0.iter().for_each(|range| self.cover(*range));
        true
    }

    /// Takes all slots of a range, whether or not some of them are free.
    pub(crate) fn cover(&mut self, SlotRange(mut first, mut last): SlotRange) {
        while let Some((&start, &end)) = self.held.range(..=last.saturating_add(1)).next_back()
            && end.saturating_add(1) >= first
        {
            self.held.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        self.held.insert(first, last);
    }

    /// Releases slots that were taken.
    pub(crate) fn give_back(&mut self, slots: &Slots) {
        for &SlotRange(first, last) in &slots.0 {
            let Some((&start, &end)) = self.held.range(..=first).next_back() else { continue };
            self.held.remove(&start);
            if start < first {
                self.held.insert(start, first - 1);
            }
            if last < end {
                self.held.insert(last + 1, end);
            }
        }
    }
}

impl OutOfService {
    /// The number of slots in each bucket; 0 if nothing is out of service, because it then does not
    /// matter.
    pub(crate) fn unit(&self, view: View) -> u64 {
        if self.0.is_empty() { 0 } else { view.unit() }
    }

    /// The number of slots of a view that are in service.
    pub(crate) fn capacity(&self, view: View) -> u64 {
        let out = self.0.range(..view.capacity() / view.unit()).count() as u64;
        view.capacity() - out * view.unit()
    }

    /// The slots that are out of service, as ranges.
    fn ranges(&self, unit: u64) -> impl Iterator<Item = SlotRange> {
        self.0.iter().filter_map(move |number| {
            let first = number.checked_mul(unit)?;
            let last = first.checked_add(unit - 1).filter(|last| *last < u64::MAX - 1)?;
            Some(SlotRange(first, last))
        })
    }

    /// How many held slots are out of service. Logarithmic for each of them.
    pub(crate) fn held(&self, unit: u64, pool: &SlotPool) -> u64 {
        self.ranges(unit).map(|range| pool.held_in(range)).sum()
    }

    /// The lowest `count` slots that are free and in service. The caller has checked that there are
    /// enough.
    pub(crate) fn lowest(&self, unit: u64, pool: &SlotPool, count: u64) -> Slots {
        let mut taken = Cow::Borrowed(pool);
        self.ranges(unit).for_each(|range| taken.to_mut().cover(range));
        Slots::first_of(taken.free_from(0), count)
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
        let lowest = OutOfService::default().lowest(0, free, count);
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

    #[test]
    fn a_slot_in_several_sets_is_counted_once() {
        let sets = [Slots(vec![SlotRange(1, 2), SlotRange(5, 7)]), Slots(vec![SlotRange(1, 5)])];
        assert_eq!(SlotPool::of(sets.iter()).held, BTreeMap::from([(1, 7)]));
        assert_eq!(SlotPool::of(sets.iter()).count(), 7);
        assert_eq!(SlotPool::of(sets[..1].iter()).held, BTreeMap::from([(1, 2), (5, 7)]));
        assert_eq!(SlotPool::of([].iter()), SlotPool::default());
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
                    free.held.iter().flat_map(|(first, last)| *first..=*last).collect();
                prop_assert_eq!(&held, &used.iter().copied().collect::<Vec<_>>());
                for (first, last) in [(0, 50), (which as u64, 9), (3, 3), (7, 2)] {
                    let expected = used.range(first.min(last)..=last.max(first)).count() as u64;
                    let range = SlotRange(first.min(last), last.max(first));
                    prop_assert_eq!(free.held_in(range), expected);
                    let next = (first..).find(|slot| !used.contains(slot));
                    prop_assert_eq!(free.free_from(first).next().map(|range| range.0), next);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn it_equals_a_count_of_each_bucket(
            ops in prop::collection::vec((any::<bool>(), 0u64..20, 0usize..8), 1..60),
            per in 1u64..4,
            out in prop::collection::vec(0u64..6, 0..3),
        ) {
            let (mut free, mut taken) = (SlotPool::default(), Vec::<Slots>::new());
            let without = OutOfService(out.iter().copied().collect());
            for (take, slot, which) in ops {
                let one = Slots(vec![SlotRange(slot, slot)]);
                if take && free.take(&one) {
                    taken.push(one);
                } else if !take && which < taken.len() {
                    let back = taken.remove(which);
                    free.give_back(&back);
                }
                let held = |bucket: u64| taken.iter().flat_map(Slots::iter).filter(|s| s / per == bucket).count();
                for limit in 0..9 {
                    let in_service = (0..limit).filter(|bucket| !out.contains(bucket));
                    let expected = in_service.min_by_key(|bucket| (held(*bucket), *bucket));
                    prop_assert_eq!(free.emptiest(per, limit, &without), expected);
                }
            }
        }
    }

    #[test]
    fn a_million_buckets_cost_no_more_than_those_in_use() {
        let (mut free, out) = (SlotPool::default(), OutOfService::default());
        for bucket in 0..1000 {
            assert_eq!(free.emptiest(3, 1 << 50, &out), Some(bucket));
            assert!(free.take(&Slots(vec![SlotRange(3 * bucket, 3 * bucket)])));
        }
        assert_eq!(free.emptiest(3, 1000, &out), Some(0));
    }
}
