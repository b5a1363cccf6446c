//! How many slots were in use over time, and of how many.
//!
//! Time is divided into buckets of one width. When there are too many buckets, they are merged into
//! wider ones, so a year takes the same room as an hour.

use std::collections::BTreeMap;

/// The widths of buckets in milliseconds, from a second to a week. Each is a multiple of the one
/// before, so that whole buckets can be merged.
const WIDTHS_MS: [u64; 11] = [
    1_000,
    5_000,
    15_000,
    60_000,
    300_000,
    900_000,
    3_600_000,
    14_400_000,
    43_200_000,
    86_400_000,
    604_800_000,
];

/// The maximum number of buckets, including empty ones.
const BUCKETS_MAX: u64 = 256;

/// How much was in use over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    width_ms: u64,
    /// The buckets in use. The number of a bucket is its beginning divided by the width.
    buckets: BTreeMap<u64, Bucket>,
}

/// The content of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// The use, in slots times milliseconds.
    pub(crate) used: u64,
    /// How long requests waited, in requests times milliseconds.
    pub(crate) waited: u64,
    /// The last time at which the number of slots was known, and that number.
    size: Option<(u64, u64)>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { width_ms: WIDTHS_MS[0], buckets: BTreeMap::new() }
    }
}

impl Timeline {
    /// Adds this many slots that were in use from one time to another, both in milliseconds.
    pub(crate) fn add(&mut self, from_ms: u64, until_ms: u64, slots: u64) {
        self.spread(from_ms, until_ms, slots, |bucket| &mut bucket.used);
    }

    /// Adds a request that waited from one time to another, both in milliseconds.
    pub(crate) fn add_wait(&mut self, from_ms: u64, until_ms: u64) {
        self.spread(from_ms, until_ms, 1, |bucket| &mut bucket.waited);
    }

    /// Adds a period, multiplied by `times`, to the buckets that it overlaps.
    fn spread(
        &mut self,
        from_ms: u64,
        until_ms: u64,
        times: u64,
        amount: impl Fn(&mut Bucket) -> &mut u64,
    ) {
        if until_ms <= from_ms {
            return;
        }
        self.cover(from_ms, until_ms - 1);
        let width = self.width_ms;
        for number in from_ms / width..=(until_ms - 1) / width {
            let begin = number * width;
            let length = until_ms.min(begin.saturating_add(width)) - from_ms.max(begin);
            let amount = amount(self.buckets.entry(number).or_default());
            *amount = amount.saturating_add(length.saturating_mul(times));
        }
    }

    /// Extends the timeline to this time.
    pub(crate) fn reach(&mut self, at_ms: u64) {
        self.bucket(at_ms);
    }

    fn bucket(&mut self, at_ms: u64) -> &mut Bucket {
        self.cover(at_ms, at_ms);
        self.buckets.entry(at_ms / self.width_ms).or_default()
    }

    /// Records how many slots there were at a time.
    pub(crate) fn note_size(&mut self, at_ms: u64, size: u64) {
        let bucket = self.bucket(at_ms);
        bucket.size = bucket.size.max(Some((at_ms, size)));
    }

    /// Merges buckets until there are few enough of them, including these times.
    fn cover(&mut self, first_ms: u64, last_ms: u64) {
        loop {
            let (from, to) = (first_ms / self.width_ms, last_ms / self.width_ms);
            let from = self.first().map_or(from, |first| first.min(from));
            let last = self.buckets.last_key_value();
            let to = last.map_or(to, |(last, _)| to.max(*last));
            if to - from < BUCKETS_MAX {
                return;
            }
            self.widen();
        }
    }

    fn widen(&mut self) {
        let wider = WIDTHS_MS.into_iter().find(|width| *width > self.width_ms);
        let wider = wider.unwrap_or_else(|| self.width_ms.saturating_mul(2));
        let factor = wider / self.width_ms;
        self.width_ms = wider;
        for (number, bucket) in std::mem::take(&mut self.buckets) {
            let joined = self.buckets.entry(number / factor).or_default();
            joined.used = joined.used.saturating_add(bucket.used);
            joined.waited = joined.waited.saturating_add(bucket.waited);
            joined.size = joined.size.max(bucket.size);
        }
    }

    /// How wide a bucket is, in milliseconds.
    pub(crate) fn width_ms(&self) -> u64 {
        self.width_ms
    }

    fn first(&self) -> Option<u64> {
        self.buckets.first_key_value().map(|(number, _)| *number)
    }

    /// When the first bucket begins; 0 without buckets.
    pub(crate) fn begin_ms(&self) -> u64 {
        self.first().map_or(0, |number| number * self.width_ms)
    }

    /// The figure of each bucket, from the first to the last in use.
    pub(crate) fn of_each(&self, of: impl FnMut(Bucket) -> u64) -> Vec<u64> {
        let ends = self.buckets.first_key_value().zip(self.buckets.last_key_value());
        let numbers = ends.into_iter().flat_map(|((first, _), (last, _))| *first..=*last);
        let each = numbers.map(|number| self.buckets.get(&number).copied().unwrap_or_default());
        each.map(of).collect()
    }

    /// The number of slots in each bucket: the last one recorded by then, or the first one recorded
    /// if there is none earlier. Empty without a record.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let Some((_, mut size)) = self.buckets.values().find_map(|bucket| bucket.size) else {
            return Vec::new();
        };
        self.of_each(|bucket| {
            size = bucket.size.map_or(size, |(_, size)| size);
            size
        })
    }

    /// The total use, in slots times milliseconds.
    pub(crate) fn sum(&self) -> u64 {
        self.buckets.values().fold(0, |sum, bucket| sum.saturating_add(bucket.used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(timeline: &Timeline) -> Vec<u64> {
        timeline.of_each(|bucket| bucket.used)
    }

    fn waited(timeline: &Timeline) -> Vec<u64> {
        timeline.of_each(|bucket| bucket.waited)
    }

    #[test]
    fn waits_share_the_buckets_of_the_use() {
        let mut timeline = Timeline::default();
        timeline.add(12_000, 13_000, 2);
        timeline.add_wait(10_500, 12_000);
        timeline.add_wait(11_000, 12_250);
        timeline.add_wait(11_000, 11_000);
        assert_eq!(timeline.begin_ms(), 10_000);
        assert_eq!(waited(&timeline), [500, 2_000, 250]);
        assert_eq!(used(&timeline), [0, 0, 2_000]);
        // Each wider bucket has the sum of the merged ones.
        timeline.reach(10_000 + 1_000 * BUCKETS_MAX);
        assert_eq!(timeline.width_ms(), 5_000);
        assert_eq!((waited(&timeline)[0], used(&timeline)[0]), (2_750, 2_000));
    }

    #[test]
    fn a_bucket_has_what_was_in_use_while_it_lasted() {
        let mut timeline = Timeline::default();
        // Two slots from the middle of the first second to the middle of the third.
        timeline.add(10_500, 12_500, 2);
        timeline.add(12_000, 12_001, 1);
        timeline.add(12_000, 12_000, 9);
        assert_eq!((timeline.begin_ms(), timeline.width_ms()), (10_000, 1_000));
        assert_eq!(used(&timeline), [1_000, 2_000, 1_001]);
        timeline.reach(14_999);
        assert_eq!(used(&timeline), [1_000, 2_000, 1_001, 0, 0]);
        assert_eq!(timeline.sum(), 4_001);
    }

    #[test]
    fn a_bucket_has_the_size_that_was_noted_last() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.sizes(), [0; 0]);
        timeline.add(10_000, 15_000, 1);
        assert_eq!(timeline.sizes(), [0; 0]);
        // The latest record of a bucket counts, regardless of the order of arrival.
        for (at_ms, size) in [(13_500, 8), (11_900, 4), (11_100, 2), (13_400, 6)] {
            timeline.note_size(at_ms, size);
        }
        assert_eq!(timeline.sizes(), [4, 4, 4, 8, 8]);
        timeline.reach(10_000 + 3_600_000);
        assert_eq!(timeline.width_ms(), 15_000);
        assert_eq!(timeline.sizes(), vec![8; used(&timeline).len()]);
    }

    #[test]
    fn buckets_are_joined_and_nothing_is_lost() {
        let mut timeline = Timeline::default();
        let mut sum = 0;
        // A year, with use every three hours, the latest first.
        for n in (0..2_920_u64).rev() {
            let (from, length) = (n * 10_800_000, 1 + n * 977 % 7_200_000);
            timeline.add(from, from + length, 1 + n % 3);
            sum += length * (1 + n % 3);
            assert!(used(&timeline).len() as u64 <= BUCKETS_MAX);
        }
        assert_eq!(timeline.sum(), sum);
        assert_eq!(used(&timeline).iter().sum::<u64>(), sum);
        assert_eq!(timeline.width_ms(), 604_800_000);
        assert_eq!(timeline.begin_ms(), 0);
    }

    #[test]
    fn a_long_hold_comes_in_as_few_buckets_as_a_short_one() {
        let mut timeline = Timeline::default();
        let day = 86_400_000;
        timeline.add(day, 3 * day, 1);
        assert_eq!(timeline.sum(), 2 * day);
        assert_eq!(timeline.width_ms(), 900_000);
        assert!(used(&timeline).iter().all(|used| *used == 900_000));
    }

    #[test]
    fn no_time_is_too_far_away() {
        let mut timeline = Timeline::default();
        timeline.add(0, 1, u64::MAX);
        timeline.add(u64::MAX - 1, u64::MAX, u64::MAX);
        timeline.reach(u64::MAX);
        assert!(used(&timeline).len() as u64 <= BUCKETS_MAX);
        assert_eq!(timeline.sum(), u64::MAX);
    }
}
