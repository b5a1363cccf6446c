//! The parts of a lock that are out of service.

use std::collections::BTreeSet;

use super::slot_pool::SlotPool;
use crate::{SlotRange, Slots, View};

/// The buckets of a key that are out of service; for the slots kind, the slots. The view of a
/// request determines which slots belong to a bucket. The numbers are those of buckets, not of
/// fixed slots. So a number means the same bucket (for example, the same GPU) for every `per` that
/// a caller states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutOfService(BTreeSet<u64>);

impl OutOfService {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers, ascending.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.0.iter().copied().collect()
    }

    /// Takes numbers out of service, or returns them.
    pub(crate) fn change(&mut self, numbers: &[u64], out: bool) {
        for number in numbers {
            if out {
                self.0.insert(*number);
            } else {
                self.0.remove(number);
            }
        }
    }

    /// Whether a bucket is out of service.
    pub(crate) fn contains(&self, bucket: u64) -> bool {
        self.0.contains(&bucket)
    }

    /// The number of slots in each bucket; 0 if nothing is out of service, because it then does not
    /// matter.
    pub(crate) fn unit(&self, view: View) -> u64 {
        if self.0.is_empty() { 0 } else { view.unit() }
    }

    /// The number of slots of a view that are in service.
    pub(crate) fn capacity(&self, view: View) -> u64 {
        if self.0.is_empty() {
            return view.capacity();
        }
        let units = view.capacity().checked_div(view.unit()).unwrap_or(0);
        let out = self.0.range(..units).count() as u64;
        view.capacity() - out.saturating_mul(view.unit())
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
    pub(crate) fn held(&self, unit: u64, free: &SlotPool) -> u64 {
        self.ranges(unit).map(|range| free.held_in(range)).sum()
    }

    /// How many of these slots are in service.
    pub(crate) fn in_service(&self, unit: u64, slots: &Slots) -> u64 {
        let common = |one: SlotRange, other: SlotRange| {
            let (first, last) = (one.0.max(other.0), one.1.min(other.1));
            if first <= last { last - first + 1 } else { 0 }
        };
        let out = self.ranges(unit).flat_map(|range| slots.0.iter().map(move |it| (range, *it)));
        slots.count() - out.map(|(one, other)| common(one, other)).sum::<u64>()
    }

    /// The first slots of a range that are in service.
    fn first_in_service(&self, unit: u64, SlotRange(first, last): SlotRange) -> Option<SlotRange> {
        let mut first = first;
        while self.0.contains(&(first / unit)) {
            first = (first / unit + 1).checked_mul(unit).filter(|next| *next <= last)?;
        }
        let next = self.0.range(first / unit..).next();
        let end = next.map_or(u64::MAX, |next| next.saturating_mul(unit) - 1);
        Some(SlotRange(first, last.min(end)))
    }

    /// The lowest `count` slots that are free and in service. The caller has checked that there are
    /// enough.
    pub(crate) fn lowest(&self, unit: u64, free: &SlotPool, count: u64) -> Slots {
        if self.0.is_empty() {
            return free.lowest(count);
        }
        let (mut lowest, mut missing, mut from) = (Vec::new(), count, 0);
        while missing > 0 {
            let range = free.free_from(from);
            let Some(SlotRange(first, last)) = self.first_in_service(unit, range) else {
                from = range.1 + 1;
                continue;
            };
            let last = last.min(first + (missing - 1));
            lowest.push(SlotRange(first, last));
            missing -= last - first + 1;
            from = last + 1;
        }
        Slots(lowest)
    }
}
