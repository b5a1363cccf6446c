//! Counts how often each length of time occurred.

use std::collections::BTreeMap;

use canal_protocol::{HistoryBin, HistoryLengths};

/// The parts of each power of two: a quantile is at most 1/32 too large.
const PARTS: u64 = 32;

/// How often each length of time occurred. The lengths are rounded, so a million of them take the
/// same room as ten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    parts: BTreeMap<u32, u64>,
    pub(super) count: u64,
    max: u64,
}

impl Histogram {
    pub(crate) fn add(&mut self, length: u64) {
        *self.parts.entry(part(length)).or_default() += 1;
        self.count += 1;
        self.max = self.max.max(length);
    }

    /// Adds all lengths of another histogram.
    pub(crate) fn join(&mut self, other: &Self) {
        for (part, count) in &other.parts {
            *self.parts.entry(*part).or_default() += count;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub(crate) fn quantiles(&self) -> HistoryLengths {
        HistoryLengths {
            median_ms: self.quantile(50),
            p90_ms: self.quantile(90),
            p99_ms: self.quantile(99),
            max_ms: self.max,
        }
    }

    /// The least length that at least this percentage of lengths does not exceed; 0 without any.
    fn quantile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100);
        let mut seen = 0;
        let found = self.parts.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        found.map_or(0, |(part, _)| largest(*part).min(self.max))
    }
}

/// The part of a length. Lengths below `PARTS` have one part each.
fn part(length: u64) -> u32 {
    if length < PARTS {
        return length as u32;
    }
    let shift = length.ilog2() - PARTS.ilog2();
    let within = (length >> shift) - PARTS;
    (shift + 1) * PARTS as u32 + within as u32
}

/// The largest length of a part.
fn largest(part: u32) -> u64 {
    let parts = PARTS as u32;
    if part < parts {
        return part.into();
    }
    let (shift, within) = (part / parts - 1, part % parts);
    let first = u128::from(PARTS + u64::from(within)) << shift;
    u64::try_from(first + (1 << shift) - 1).unwrap_or(u64::MAX)
}

/// The bounds of the bins in milliseconds, far enough apart that a person notices the difference.
const BOUNDS_MS: [u64; 16] = [
    10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 60_000, 180_000, 600_000, 1_800_000, 3_600_000,
    10_800_000, 28_800_000, 86_400_000,
];

/// How many lengths of time are in each bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bins([u64; BOUNDS_MS.len() + 1]);

impl Bins {
    pub(crate) fn add(&mut self, length_ms: u64) {
        self.0[BOUNDS_MS.partition_point(|bound| *bound < length_ms)] += 1;
    }

    /// The bins from the first to the last one in use.
    pub(crate) fn filled(&self) -> Vec<HistoryBin> {
        let first = self.0.iter().position(|count| *count > 0).unwrap_or(self.0.len());
        let last = self.0.iter().rposition(|count| *count > 0).unwrap_or(0);
        let bin =
            |at: usize| HistoryBin { up_to_ms: BOUNDS_MS.get(at).copied(), count: self.0[at] };
        (first..=last).map(bin).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_in_order_and_not_wide() {
        let mut last = 0;
        for length in (0..5_000).chain((13..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit])) {
            let part = part(length);
            assert!(part >= last, "{length}");
            last = part;
            assert!(largest(part) >= length, "{length}");
            assert!(largest(part) - length <= length / PARTS, "{length}: {}", largest(part));
        }
        assert_eq!(largest(part(u64::MAX)), u64::MAX);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_lengths_but_for_rounding() {
        for count in [1_u64, 2, 10, 999, 1_000] {
            let mut histogram = Histogram::default();
            let lengths: Vec<u64> = (1..=count).collect();
            lengths.iter().rev().for_each(|length| histogram.add(*length));
            let found = histogram.quantiles();
            assert_eq!((histogram.count, found.max_ms), (count, count));
            for (quantile, percent) in
                [(found.median_ms, 50), (found.p90_ms, 90), (found.p99_ms, 99)]
            {
                let exact = lengths[(count * percent).div_ceil(100) as usize - 1];
                assert!(
                    quantile >= exact && quantile - exact <= exact / PARTS,
                    "{percent}: {found:?}"
                );
            }
        }
        assert_eq!(Histogram::default().quantiles(), HistoryLengths::default());
    }

    #[test]
    fn a_length_is_in_the_first_bin_whose_bound_it_does_not_exceed() {
        let filled = |lengths: &[u64]| {
            let mut bins = Bins::default();
            lengths.iter().for_each(|length| bins.add(*length));
            bins.filled().iter().map(|bin| (bin.up_to_ms, bin.count)).collect::<Vec<_>>()
        };
        assert!(filled(&[]).is_empty());
        assert_eq!(filled(&[0]), [(Some(10), 1)]);
        assert_eq!(
            filled(&[10, 11, 101]),
            [(Some(10), 1), (Some(30), 1), (Some(100), 0), (Some(300), 1)]
        );
        assert_eq!(filled(&[86_400_000, u64::MAX]), [(Some(86_400_000), 1), (None, 1)]);
    }
}
