//! Estimates how long a request will wait: simulates the queue ahead of it many times, and draws
//! the length of each hold from recent ones.
//!
//! A [`Summary`] keeps the lengths of recent holds by key and command; a [`Sample`] is the
//! distribution of some lengths.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::file_format::Frames;
use super::record::Record;
use super::simulate_size::Slots;
use super::store::Store;
use canal_core::Mode;
use canal_protocol::EstimateInfo;

/// How many times a queue is simulated.
const TIMES: usize = 100;

/// A hold.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The number of its slots.
    pub count: u64,
    /// How long it has had them, in milliseconds.
    pub held_ms: u64,
    /// How long such a hold usually lasts; `None` if too few are known.
    pub usual: Option<Sample>,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The number of slots that it asks for.
    pub count: u64,
    /// The size of the lock as this request sees it.
    pub capacity: u64,
    /// How long such a hold usually lasts; `None` if too few are known.
    pub usual: Option<Sample>,
}

/// How much longer each of the waiters will probably wait, granted in this order. `None` if too
/// little is known about a hold or about an earlier waiter.
pub fn estimates(holders: &[Holder], waiters: &[Waiter]) -> Vec<Option<EstimateInfo>> {
    let known = waiters.iter().take_while(|waiter| waiter.usual.is_some()).count();
    let is_known = holders.iter().all(|holder| holder.usual.is_some());
    // How long a waiter holds its lock has no effect on its own wait.
    let served = if is_known { (known + 1).min(waiters.len()) } else { 0 };
    let queue = &waiters[..served];
    let draws: Vec<[f64; TIMES]> = (0..holders.len() + served).map(draws).collect();
    let (of_holders, of_waiters) = draws.split_at(holders.len());
    let mut waits: Vec<Vec<u64>> = vec![Vec::with_capacity(TIMES); served];
    for time in 0..TIMES {
        let mut slots = Slots::default();
        for (holder, shares) in holders.iter().zip(of_holders) {
            let left = left(holder.usual.as_ref(), holder.held_ms, shares[time]);
            slots.take(left, holder.count);
        }
        for ((waiter, shares), waits) in queue.iter().zip(of_waiters).zip(&mut waits) {
            // A request that can never fit blocks no other.
            let Some(begin) = slots.free_at(waiter.count, waiter.capacity) else { continue };
            waits.push(begin);
            let left = left(waiter.usual.as_ref(), 0, shares[time]);
            slots.take(begin.saturating_add(left), waiter.count);
        }
    }
    let mut estimates: Vec<_> = waits.into_iter().map(estimate).collect();
    estimates.resize(waiters.len(), None);
    estimates
}

/// How many milliseconds longer a hold lasts; `share` of all such holds last longer.
fn left(usual: Option<&Sample>, held_ms: u64, share: f64) -> u64 {
    usual.map_or(0, |usual| usual.left(held_ms as f64, share) as u64)
}

fn estimate(mut waits: Vec<u64>) -> Option<EstimateInfo> {
    if waits.len() < TIMES {
        return None;
    }
    waits.sort_unstable();
    let at = |percent: usize| waits[TIMES * percent / 100 - 1];
    Some(EstimateInfo { low_ms: at(10), median_ms: at(50), high_ms: at(90) })
}

/// One share for each simulation, evenly spread over all shares and shuffled differently for each
/// hold or waiter. Nothing is random: the same queue has the same estimate.
fn draws(number: usize) -> [f64; TIMES] {
    let mut shares = std::array::from_fn(|at| (at as f64 + 0.5) / TIMES as f64);
    let mut state = number as u64;
    for last in (1..TIMES).rev() {
        shares.swap(last, (next(&mut state) % (last as u64 + 1)) as usize);
    }
    shares
}

/// The next number of splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

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
}

/// The number of keys to keep, the most recently released ones.
const KEYS_MAX: usize = 256;

/// The number of commands of a key to keep apart, the most recently ended ones.
const COMMANDS_MAX: usize = 8;

/// About how many bytes of the latest records a daemon reads when it starts.
const BYTES_READ: u64 = 8 << 20;

/// The recent holds of keys.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    keys: BTreeMap<Arc<str>, Arc<OfKey>>,
    /// Counts the holds that were added.
    added: u64,
}

#[derive(Clone, Debug, Default)]
struct OfKey {
    all: Recent,
    /// For each command, by its hash: the number of its last hold, and its recent holds.
    commands: BTreeMap<u64, (u64, Recent)>,
    /// The number of the last hold.
    last: u64,
}

impl Summary {
    /// The summary of the latest records.
    pub fn of(store: &Store) -> Self {
        let mut before = 0;
        let latest = store.segments().take_while(|segment| {
            let is_read = before < BYTES_READ;
            before += segment.bytes;
            is_read
        });
        let mut summary = Self::default();
        for segment in latest.collect::<Vec<_>>().into_iter().rev() {
            let bytes = store.read(segment);
            let frames = Frames::of(&bytes).into_iter().flatten();
            frames.filter_map(|frame| frame.record()).for_each(|it| summary.add_record(&it));
        }
        summary
    }

    /// Adds the record of an ended request.
    pub fn add_record(&mut self, record: &Record<'_>) {
        let Some(held_ms) = record.held_ms.filter(|_| !record.at_least) else { return };
        for item in record.items.iter().filter(|item| item.mode == Mode::Counted) {
            self.add(&item.key, &record.command, held_ms);
        }
    }

    /// Adds a hold of a key by a command.
    pub(super) fn add(&mut self, key: &str, command: &str, held_ms: u64) {
        self.added += 1;
        let of = Arc::make_mut(of_name(&mut self.keys, Arc::from(key), KEYS_MAX, |of| of.last));
        of.last = self.added;
        of.all.add(held_ms);
        let of = of_name(&mut of.commands, hash(command), COMMANDS_MAX, |(last, _)| *last);
        of.0 = self.added;
        of.1.add(held_ms);
    }

    /// How long a command usually holds a key. If too little is known about the command, how long
    /// all commands usually hold it; `None` if too little is known about those too.
    pub fn usual(&self, key: &str, command: &str) -> Option<Sample> {
        let of = self.keys.get(key)?;
        let own = of.commands.get(&hash(command)).and_then(|(_, recent)| recent.sample());
        own.or_else(|| of.all.sample())
    }
}

/// The entry of a name. If there is no room for a new one, removes what was added to longest ago.
fn of_name<K: Ord + Clone, V: Default>(
    all: &mut BTreeMap<K, V>,
    name: K,
    most: usize,
    last: impl Fn(&V) -> u64,
) -> &mut V {
    if all.len() >= most && !all.contains_key(&name) {
        let oldest = all.iter().min_by_key(|(_, of)| last(of)).map(|(name, _)| name.clone());
        if let Some(oldest) = oldest {
            all.remove(&oldest);
        }
    }
    all.entry(name).or_default()
}

/// A hash, because a command may be long and its text is not needed.
fn hash(command: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    command.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    mod measured;

    use super::*;
    use crate::disk_space::Limits;
    use crate::record::tests::record;

    /// Half of all holds are at most this long, in milliseconds.
    fn middle(sample: &Sample) -> f64 {
        sample.sorted[(sample.sorted.len() - 1) / 2]
    }

    /// Lengths from 0.9 to 1.1 times this one.
    fn about(ms: u64) -> Option<Sample> {
        Sample::of((0..21).map(|n| ms as f64 * (0.9 + 0.01 * f64::from(n))).collect())
    }

    fn holder(held_ms: u64, usual_ms: u64) -> Holder {
        Holder { count: 1, held_ms, usual: about(usual_ms) }
    }

    fn waiter(capacity: u64, usual_ms: u64) -> Waiter {
        Waiter { count: 1, capacity, usual: about(usual_ms) }
    }

    fn medians(holders: &[Holder], waiters: &[Waiter]) -> Vec<Option<u64>> {
        estimates(holders, waiters).into_iter().map(|it| Some(it?.median_ms)).collect()
    }

    #[track_caller]
    fn near(found: Option<u64>, expected: u64) {
        let found = found.unwrap();
        assert!(found.abs_diff(expected) * 20 <= expected, "{found} and not {expected}");
    }

    #[test]
    fn each_waits_for_all_that_are_ahead() {
        let found =
            medians(&[holder(40_000, 100_000)], &[waiter(1, 50_000), waiter(1, 9), waiter(1, 1)]);
        near(found[0], 60_000);
        near(found[1], 110_000);
        near(found[2], 110_000);
    }

    #[test]
    fn the_slot_that_is_free_first_is_taken() {
        let holders = [holder(0, 100_000), holder(0, 30_000)];
        let found = medians(&holders, &[waiter(2, 30_000), waiter(2, 1_000), waiter(2, 1)]);
        near(found[0], 30_000);
        near(found[1], 60_000);
        near(found[2], 61_000);
        let free = medians(&holders, &[waiter(3, 1)]);
        assert_eq!(free, [Some(0)]);
    }

    #[test]
    fn several_slots_are_waited_for_together_and_nobody_passes() {
        let holders = [holder(0, 100_000), holder(0, 30_000)];
        let both = Waiter { count: 2, ..waiter(2, 10_000) };
        let found = medians(&holders, &[both, waiter(2, 1)]);
        near(found[0], 100_000);
        near(found[1], 110_000);
        let unfit = Waiter { count: 3, ..waiter(2, 10_000) };
        let found = medians(&holders, &[unfit, waiter(2, 1)]);
        assert_eq!(found[0], None);
        near(found[1], 30_000);
    }

    #[test]
    fn nothing_is_said_where_too_little_is_known_of_who_is_ahead() {
        let unknown = Waiter { usual: None, ..waiter(1, 1) };
        let queue = [waiter(1, 1), unknown, waiter(1, 1)];
        let found = medians(&[holder(0, 1_000)], &queue);
        assert!(found[0].is_some() && found[1].is_some() && found[2].is_none());
        let holders = [Holder { usual: None, ..holder(0, 1) }];
        assert_eq!(medians(&holders, &queue), [None; 3]);
        assert!(medians(&[holder(0, 1)], &[]).is_empty());
    }

    #[test]
    fn more_is_uncertain_where_lengths_differ_and_the_same_is_said_again() {
        let wide = Sample::of((1..=50).map(|n| f64::from(n * n) * 100.0).collect());
        let holders = [Holder { usual: wide.clone(), ..holder(0, 1) }];
        let waiters = vec![Waiter { usual: wide, ..waiter(1, 1) }; 5];
        let found = estimates(&holders, &waiters);
        for estimate in found.iter().flatten() {
            assert!(estimate.low_ms < estimate.median_ms && estimate.median_ms < estimate.high_ms);
        }
        assert!(found.is_sorted_by_key(|it| it.map(|it| it.high_ms)));
        assert_eq!(found, estimates(&holders, &waiters));
    }

    #[test]
    fn a_draw_has_each_share_once() {
        for number in 0..50 {
            let mut shares = draws(number);
            assert_ne!(shares, draws(number + 1));
            shares.sort_by(f64::total_cmp);
            assert!(
                shares
                    .iter()
                    .zip(1..)
                    .all(|(share, n)| (share * 100.0 - f64::from(n) + 0.5).abs() < 1e-6)
            );
        }
    }

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
        assert_eq!(middle(&sample), 300.0);
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

    fn median(summary: &Summary, key: &str, command: &str) -> Option<f64> {
        summary.usual(key, command).map(|sample| middle(&sample))
    }

    #[test]
    fn a_command_that_is_known_counts_before_its_key() {
        let mut summary = Summary::default();
        (0..4).for_each(|_| summary.add("k", "slow", 9_000));
        assert_eq!(median(&summary, "k", "slow"), None);
        summary.add("k", "slow", 9_000);
        (0..3).for_each(|_| summary.add("k", "fast", 10));
        assert_eq!(median(&summary, "k", "slow"), Some(9_000.0));
        assert_eq!(median(&summary, "k", "fast"), Some(9_000.0), "three are too few");
        assert_eq!(median(&summary, "k", "other"), Some(9_000.0));
        assert_eq!(median(&summary, "other", "slow"), None);
    }

    #[test]
    fn a_hold_whose_end_nobody_saw_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
        let (mut store, _) = Store::open(dir.path(), limits).unwrap();
        let unseen = Record { at_least: true, ..record(9_000, "k", 0) };
        store.append(&vec![unseen.clone(); 9].iter().collect(), 0).unwrap();
        let mut summary = Summary::of(&store);
        summary.add_record(&unseen);
        assert_eq!(summary.usual("k", &unseen.command), None);
    }

    #[test]
    fn what_was_longest_unused_is_forgotten() {
        let mut summary = Summary::default();
        (0..5).for_each(|_| summary.add("kept", "x", 1));
        for n in 0..2 * KEYS_MAX {
            summary.add(&n.to_string(), "x", 1);
            summary.add("kept", &format!("command {n}"), 1);
        }
        assert_eq!(summary.keys.len(), KEYS_MAX);
        assert!(summary.usual("kept", "x").is_some() && !summary.keys.contains_key("0"));
        assert_eq!(summary.keys["kept"].commands.len(), COMMANDS_MAX);
    }

    #[test]
    fn a_daemon_that_starts_knows_what_was_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
        let (mut store, _) = Store::open(dir.path(), limits).unwrap();
        let all: Vec<Record<'static>> =
            (0..3_000_u64).map(|n| Record { held_ms: Some(n), ..record(n, "k", 0) }).collect();
        store.append(&all.iter().collect(), 0).unwrap();
        let mut added = Summary::default();
        all.iter().for_each(|record| added.add_record(record));
        let read = Summary::of(&store);
        let sample = read.usual("k", &all[0].command);
        assert!(sample.is_some());
        assert_eq!(sample, added.usual("k", &all[0].command), "the latest ones, in their order");
    }
}
