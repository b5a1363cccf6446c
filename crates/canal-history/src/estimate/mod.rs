//! Estimates how long a request will wait: simulates the queue ahead of it many times, and draws
//! the length of each hold from recent ones.
//!
//! `summary` keeps the lengths of recent holds by key and command; `sample` is the distribution of
//! some lengths.

#[cfg(test)]
mod measured;
mod sample;
mod summary;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub use sample::Sample;
pub use summary::Summary;

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

/// How much longer a request will probably wait, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// One wait in ten is shorter.
    pub low_ms: u64,
    /// Half of all waits are shorter.
    pub median_ms: u64,
    /// Nine waits in ten are at most this long.
    pub high_ms: u64,
}

/// How much longer each of the waiters will probably wait, granted in this order. `None` if too
/// little is known about a hold or about an earlier waiter.
pub fn estimates(holders: &[Holder], waiters: &[Waiter]) -> Vec<Option<Estimate>> {
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
            slots.take(
                begin.saturating_add(left(waiter.usual.as_ref(), 0, shares[time])),
                waiter.count,
            );
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

fn estimate(mut waits: Vec<u64>) -> Option<Estimate> {
    if waits.len() < TIMES {
        return None;
    }
    waits.sort_unstable();
    let at = |percent: usize| waits[TIMES * percent / 100 - 1];
    Some(Estimate { low_ms: at(10), median_ms: at(50), high_ms: at(90) })
}

/// The slots of a key while its queue is simulated.
#[derive(Default)]
struct Slots {
    held: u64,
    /// When slots become free, and how many.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    /// When the last request was granted: none is granted earlier.
    served_ms: u64,
}

impl Slots {
    fn take(&mut self, until_ms: u64, count: u64) {
        self.held = self.held.saturating_add(count);
        self.ends.push(Reverse((until_ms, count)));
    }

    /// When `count` slots are free for a request that counts by `capacity`; `None` if they never
    /// are.
    fn free_at(&mut self, count: u64, capacity: u64) -> Option<u64> {
        if count > capacity {
            return None;
        }
        while self.held.saturating_add(count) > capacity {
            let Reverse((at_ms, freed)) = self.ends.pop()?;
            self.held = self.held.saturating_sub(freed);
            self.served_ms = self.served_ms.max(at_ms);
        }
        Some(self.served_ms)
    }
}

/// One share for each simulation, evenly spread over all shares and shuffled differently for each
/// hold or waiter. Nothing is random: the same queue has the same estimate.
fn draws(number: usize) -> [f64; TIMES] {
    let mut shares = [0.0; TIMES];
    for (at, share) in shares.iter_mut().enumerate() {
        *share = (at as f64 + 0.5) / TIMES as f64;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
