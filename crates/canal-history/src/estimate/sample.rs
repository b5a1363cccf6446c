//! How long a lock is usually held, from the lengths of recent holds.

use std::collections::VecDeque;

/// The number of lengths to keep, the latest ones.
const KEPT: usize = 64;

/// Fewer lengths give no estimate.
pub(super) const LEAST: usize = 5;

/// How far a hold may exceed the longest recorded one: of the holds that do, one in four takes at
/// least twice as long.
const TAIL: f64 = 0.5;

/// The lengths of recent holds, the latest last, in milliseconds. A longer hold than 49 days counts
/// as 49 days.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recent(VecDeque<u32>);

impl Recent {
    pub(super) fn add(&mut self, held_ms: u64) {
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back(u32::try_from(held_ms).unwrap_or(u32::MAX));
    }

    /// How long a hold usually lasts; `None` if too few are known.
    pub(super) fn sample(&self) -> Option<Sample> {
        Sample::of(self.0.iter().copied().map(f64::from).collect())
    }
}

/// A distribution of lengths, from a sample.
///
/// n lengths in random order leave n + 1 gaps, and the next length is equally likely to fall into
/// each. Within a gap, all lengths are equally likely; above the largest length, the probability
/// follows a power law.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// At least [`LEAST`] lengths in milliseconds, each at least 1.
    sorted: Vec<f64>,
}

impl Sample {
    /// A distribution from these lengths, in milliseconds; `None` if there are too few.
    pub(super) fn of(lengths: Vec<f64>) -> Option<Self> {
        if lengths.len() < LEAST {
            return None;
        }
        let mut sorted: Vec<f64> = lengths.into_iter().map(|length| length.max(1.0)).collect();
        sorted.sort_by(f64::total_cmp);
        Some(Self { sorted })
    }

    /// The length that this share of holds exceeds, above 0 and at most 1.
    fn exceeded_by(&self, share: f64) -> f64 {
        let count = self.sorted.len();
        let gaps = (count + 1) as f64;
        let largest = self.sorted[count - 1];
        if share * gaps <= 1.0 {
            return largest * (1.0 / (share * gaps)).powf(TAIL);
        }
        let rank = (1.0 - share) * gaps;
        let below = (rank as usize).min(count - 1);
        let from = if below == 0 { self.sorted[0] / 2.0 } else { self.sorted[below - 1] };
        from + (self.sorted[below] - from) * (rank - below as f64).clamp(0.0, 1.0)
    }

    /// The share of holds that are longer.
    fn share_above(&self, length: f64) -> f64 {
        let count = self.sorted.len();
        let gaps = (count + 1) as f64;
        let largest = self.sorted[count - 1];
        if length >= largest {
            return (largest / length).powf(1.0 / TAIL) / gaps;
        }
        let below = self.sorted.partition_point(|known| *known <= length);
        let from = if below == 0 { self.sorted[0] / 2.0 } else { self.sorted[below - 1] };
        let width = self.sorted[below] - from;
        let within = if width > 0.0 { ((length - from) / width).clamp(0.0, 1.0) } else { 0.0 };
        1.0 - (below as f64 + within) / gaps
    }

    /// How many milliseconds longer a hold lasts that has lasted `held_ms`: this share of such
    /// holds lasts longer than that.
    pub(super) fn left(&self, held_ms: f64, share: f64) -> f64 {
        let above = self.share_above(held_ms);
        (self.exceeded_by(above * share) - held_ms).max(0.0)
    }

    /// Half of all holds are at most this long, in milliseconds.
    #[cfg(test)]
    pub(super) fn median(&self) -> f64 {
        self.sorted[(self.sorted.len() - 1) / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(lengths: &[u64]) -> Sample {
        let mut recent = Recent::default();
        lengths.iter().for_each(|length| recent.add(*length));
        recent.sample().unwrap()
    }

    #[test]
    fn nothing_is_said_by_four_lengths() {
        let mut recent = Recent::default();
        (0..4).for_each(|_| recent.add(1000));
        assert_eq!(recent.sample(), None);
        recent.add(1000);
        assert!(recent.sample().is_some());
    }

    #[test]
    fn only_the_latest_count() {
        let mut recent = Recent::default();
        recent.add(u64::MAX);
        (0..64).for_each(|_| recent.add(7));
        assert_eq!(recent.sample().unwrap().sorted, [7.0; 64]);
    }

    #[test]
    fn each_length_is_exceeded_by_its_share() {
        let sample = sample(&[400, 100, 300, 200].iter().copied().chain([500]).collect::<Vec<_>>());
        // Six gaps between five lengths.
        for (rank, length) in [(1.0, 100.0), (2.0, 200.0), (4.0, 400.0), (5.0, 500.0)] {
            let share = 1.0 - rank / 6.0;
            assert!((sample.exceeded_by(share) - length).abs() < 0.001, "{rank}");
            assert!((sample.share_above(length) - share).abs() < 0.001, "{length}");
        }
        assert!((sample.exceeded_by(1.0 - 2.5 / 6.0) - 250.0).abs() < 0.001);
        assert!((sample.exceeded_by(1.0) - 50.0).abs() < 0.001);
        // One in four holds that are longer than all others takes twice as long.
        assert!((sample.exceeded_by(1.0 / 24.0) - 1000.0).abs() < 0.001);
        assert!((sample.share_above(1000.0) - 1.0 / 24.0).abs() < 0.001);
        assert_eq!(sample.share_above(0.0), 1.0);
        assert_eq!(sample.median(), 300.0);
    }

    #[test]
    fn what_is_left_becomes_less_while_it_lasts_and_more_when_it_is_late() {
        let sample = sample(&[100, 110, 120, 130, 140, 150, 160, 170, 180]);
        let left = |held| sample.left(held, 0.5);
        assert!((left(0.0) - 140.0).abs() < 1.0, "{}", left(0.0));
        assert!(left(90.0) < 60.0 && left(135.0) < left(90.0));
        // A hold that takes unusually long may take as long again.
        assert!(left(400.0) > left(200.0) && left(200.0) > 50.0);
        assert!((sample.left(400.0, 0.25) - 400.0).abs() < 0.001);
        assert!(sample.left(1e12, 0.01).is_finite());
    }

    #[test]
    fn lengths_that_are_all_the_same_are_a_sample_too() {
        let sample = sample(&[0, 0, 0, 0, 0, 0]);
        for held in [0.0, 0.5, 1.0, 2.0] {
            for share in [0.01, 0.5, 1.0] {
                let left = sample.left(held, share);
                assert!((0.0..100.0).contains(&left), "{held} {share}: {left}");
            }
        }
    }
}
