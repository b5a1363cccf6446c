//! The slots of a key that are in service, and how many of them are held.

use crate::index::slots_and_buckets::SlotPool;
use crate::{OutOfService, SlotRange, Slots, View};

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
        if self.0.is_empty() {
            return pool.lowest(count);
        }
        let mut taken = pool.clone();
        self.ranges(unit).for_each(|range| taken.cover(range));
        taken.lowest(count)
    }
}
