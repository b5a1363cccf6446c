//! Tracks how many slots of each bucket are held, to spread requests over the buckets.

use std::collections::{BTreeMap, BTreeSet};

use super::out_of_service::OutOfService;
use super::slot_pool::SlotPool;
use crate::{SlotRange, Slots};

/// The held slots of each bucket, for one number of slots per bucket. Only buckets in use take
/// memory.
#[derive(Clone, Debug)]
pub(crate) struct BucketUse {
    per: u64,
    held: BTreeMap<u64, u64>,
    by_held: BTreeSet<(u64, u64)>,
    /// The buckets without a held slot.
    empty: SlotPool,
}

impl BucketUse {
    /// Linear in the number of held slots.
    pub(crate) fn of(free: &SlotPool, per: u64) -> Self {
        let (held, by_held, empty) = Default::default();
        let mut buckets = Self { per, held, by_held, empty };
        free.held_ranges().for_each(|range| buckets.change_range(range, true));
        buckets
    }

    /// Whether it counts buckets of this size.
    pub(crate) fn is_of(&self, per: u64) -> bool {
        self.per == per
    }

    /// Counts slots that are taken or released. Linear in the number of their buckets.
    pub(crate) fn change(&mut self, slots: &Slots, taken: bool) {
        slots.0.iter().for_each(|range| self.change_range(*range, taken));
    }

    fn change_range(&mut self, SlotRange(first, last): SlotRange, taken: bool) {
        for bucket in first / self.per..=last / self.per {
            let begin = first.max(bucket * self.per);
            let end = last.min(bucket.saturating_mul(self.per).saturating_add(self.per - 1));
            let slots = end - begin + 1;
            let was = self.held.get(&bucket).copied().unwrap_or(0);
            let is = if taken { was + slots } else { was - slots };
            let only = Slots(vec![SlotRange(bucket, bucket)]);
            self.by_held.remove(&(was, bucket));
            match (was, is) {
                (0, 0) => {}
                (0, _) => drop(self.empty.take(&only)),
                (_, 0) => self.empty.give_back(&only),
                _ => {}
            }
            if is == 0 {
                self.held.remove(&bucket);
            } else {
                self.held.insert(bucket, is);
                self.by_held.insert((is, bucket));
            }
        }
    }

    /// The bucket in service below `buckets` with the fewest held slots; the lowest such bucket.
    /// Logarithmic in the number of buckets in use, for each different number of held slots.
    pub(crate) fn emptiest(&self, buckets: u64, out: &OutOfService) -> Option<u64> {
        let [SlotRange(empty, _)] = out.lowest(1, &self.empty, 1).0[..] else { return None };
        if empty < buckets {
            return Some(empty);
        }
        let mut level = self.by_held.first()?.0;
        loop {
            let mut here = self.by_held.range((level, 0)..(level, buckets));
            if let Some((_, bucket)) = here.find(|(_, bucket)| !out.contains(*bucket)) {
                return Some(*bucket);
            }
            level = self.by_held.range((level + 1, 0)..).next()?.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_equals_a_count_of_each_bucket(
            ops in prop::collection::vec((any::<bool>(), 0u64..20, 0usize..8), 1..60),
            per in 1u64..4,
            out in prop::collection::vec(0u64..6, 0..3),
        ) {
            let (mut free, mut taken) = (SlotPool::default(), Vec::<Slots>::new());
            let mut buckets = BucketUse::of(&free, per);
            let mut without = OutOfService::default();
            without.change(&out, true);
            for (take, slot, which) in ops {
                let one = Slots(vec![SlotRange(slot, slot)]);
                if take && free.take(&one) {
                    buckets.change(&one, true);
                    taken.push(one);
                } else if !take && which < taken.len() {
                    let back = taken.remove(which);
                    free.give_back(&back);
                    buckets.change(&back, false);
                }
                let rebuilt = BucketUse::of(&free, per);
                prop_assert_eq!((&rebuilt.held, &rebuilt.by_held), (&buckets.held, &buckets.by_held));
                prop_assert_eq!(&rebuilt.empty, &buckets.empty);
                let held = |bucket: u64| taken.iter().flat_map(Slots::iter).filter(|s| s / per == bucket).count();
                for limit in 0..9 {
                    let in_service = (0..limit).filter(|bucket| !out.contains(bucket));
                    let expected = in_service.min_by_key(|bucket| (held(*bucket), *bucket));
                    prop_assert_eq!(buckets.emptiest(limit, &without), expected);
                }
            }
        }
    }

    #[test]
    fn a_million_buckets_cost_no_more_than_those_in_use() {
        let (mut free, out) = (SlotPool::default(), OutOfService::default());
        let mut buckets = BucketUse::of(&free, 3);
        for bucket in 0..1000 {
            assert_eq!(buckets.emptiest(1_000_000, &out), Some(bucket));
            let slot = Slots(vec![SlotRange(3 * bucket, 3 * bucket)]);
            assert!(free.take(&slot));
            buckets.change(&slot, true);
        }
        assert_eq!((buckets.held.len(), buckets.by_held.len()), (1000, 1000));
        assert_eq!(buckets.emptiest(1000, &out), Some(0));
    }
}
