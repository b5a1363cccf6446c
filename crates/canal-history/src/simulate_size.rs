//! Simulates how long requests would have waited with another number of slots.
//!
//! Each request arrives at its recorded time and holds its slots for its recorded time. It does not
//! predict that people would send requests at other times if they waited less.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use canal_protocol::{HistoryLengths, HistorySlotsRow};

/// At most this many requests are replayed, the latest ones.
pub(crate) const ARRIVALS_MAX: usize = 10_000;

/// A request for slots of a key that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// When it was requested, in milliseconds since 1970 UTC.
    pub asked_ms: u64,
    /// How many milliseconds it held its slots.
    pub held_ms: u64,
    /// The number of its slots.
    pub count: u64,
}

/// The slots of a key while its queue is simulated. Requests are granted in their order, so none
/// overtakes another.
#[derive(Default)]
pub(crate) struct Slots {
    held: u64,
    /// When slots become free, and how many.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    /// When the last request was granted: none is granted earlier.
    served_ms: u64,
}

impl Slots {
    pub(crate) fn take(&mut self, until_ms: u64, count: u64) {
        self.held = self.held.saturating_add(count);
        self.ends.push(Reverse((until_ms, count)));
    }

    /// When `count` slots are free for a request that counts by `capacity`; `None` if they never
    /// are.
    pub(crate) fn free_at(&mut self, count: u64, capacity: u64) -> Option<u64> {
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

/// The numbers of slots to try: the current one, one and two less and more, and twice as many.
pub(crate) fn sizes_to_try(present: u64) -> BTreeSet<u64> {
    let less = (1..=2).map(|n| present.saturating_sub(n));
    let more = (0..=2).map(|n| present.saturating_add(n));
    let all = less.chain(more).chain([present.saturating_mul(2)]);
    all.filter(|slots| *slots > 0).collect()
}

/// How long each of these requests would have waited for a lock of this size, the earliest request
/// first. Requests for more slots than that wait for nothing, and block no other.
pub(crate) fn waits(arrivals: &[Arrival], capacity: u64) -> Vec<u64> {
    let mut slots = Slots::default();
    let wait = |arrival: &Arrival| {
        let begin_ms = slots.free_at(arrival.count, capacity)?.max(arrival.asked_ms);
        slots.take(begin_ms.saturating_add(arrival.held_ms), arrival.count);
        Some(begin_ms - arrival.asked_ms)
    };
    arrivals.iter().filter_map(wait).collect()
}

/// How long these requests would have waited for a lock of this size.
pub(crate) fn replay(arrivals: &[Arrival], slots: u64) -> HistorySlotsRow {
    let mut waits = waits(arrivals, slots);
    waits.sort_unstable();
    let unfit = (arrivals.len() - waits.len()) as u64;
    let waits = HistoryLengths {
        median_ms: quantile(&waits, 50),
        p90_ms: quantile(&waits, 90),
        p99_ms: quantile(&waits, 99),
        max_ms: quantile(&waits, 100),
    };
    HistorySlotsRow { slots, waits, unfit }
}

/// The least of the sorted lengths that at least this percentage does not exceed; 0 without any.
pub(crate) fn quantile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use canal_core::{
        Ask, Change, ENTRY_VERSION, Entry, FrameId, Item, Key, Outcome, Owner, ProcessId, Request,
        RequestId, Revision, Table, Tag, UnixMillis, View, Wait,
    };

    fn arrivals(of: &[(u64, u64, u64)]) -> Vec<Arrival> {
        let of = of.iter();
        of.map(|(asked_ms, held_ms, count)| Arrival {
            asked_ms: *asked_ms,
            held_ms: *held_ms,
            count: *count,
        })
        .collect()
    }

    fn waits(of: &[(u64, u64, u64)], slots: u64) -> Vec<u64> {
        super::waits(&arrivals(of), slots)
    }

    #[test]
    fn the_waits_are_those_that_one_counts_by_hand() {
        // One each second, each for three seconds: three slots are enough, and with two, each pair
        // waits a second longer than the pair before.
        let steady: Vec<_> = (0..8).map(|n| (n * 1000, 3000, 1)).collect();
        assert_eq!(waits(&steady, 3), [0; 8]);
        assert_eq!(waits(&steady, 2), [0, 0, 1000, 1000, 2000, 2000, 3000, 3000]);
        // With one slot, the second waits for the first, and so on: 3 s for each request ahead,
        // less the second that passed between them.
        let alone: Vec<_> = (0..8).map(|n| n * 2000).collect();
        assert_eq!(waits(&steady, 1), alone);
        // A hold that ends at the time of an arrival does not block it.
        assert_eq!(waits(&[(0, 1000, 1), (1000, 1000, 1), (1000, 0, 1)], 1), [0, 0, 1000]);
        // Later requests do not overtake a request for two slots.
        assert_eq!(waits(&[(0, 100, 1), (10, 100, 2), (20, 100, 1)], 2), [0, 90, 180]);
    }

    #[test]
    fn what_never_fits_is_counted_and_in_nobodys_way() {
        let arrivals = [
            Arrival { asked_ms: 0, held_ms: 100, count: 3 },
            Arrival { asked_ms: 10, held_ms: 100, count: 1 },
        ];
        assert_eq!((replay(&arrivals, 2).unfit, super::waits(&arrivals, 2)), (1, vec![0]));
        assert_eq!(replay(&arrivals, 0).unfit, 2);
    }

    /// A number in 0..1 that follows from the state alone.
    fn random(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The waits of M/M/c are known: their probability is Erlang's C, and their length is
    /// exponential with the rate c·μ − λ.
    #[test]
    fn random_arrivals_wait_as_erlang_found() {
        // Arrivals every 10 s on average, each of which holds for 24 s: an offered load of 2.4.
        let (between, hold, count) = (10_000.0, 24_000.0, 20_000);
        let (mut state, mut at) = (1917, 0.0);
        let arrivals: Vec<Arrival> = (0..count)
            .map(|_| {
                at += -between * (1.0 - random(&mut state)).ln();
                let held = -hold * (1.0 - random(&mut state)).ln();
                Arrival { asked_ms: at as u64, held_ms: held as u64, count: 1 }
            })
            .collect();
        for slots in [3_u64, 4, 6] {
            let (load, servers) = (hold / between, slots as f64);
            let mut blocked = 1.0;
            for n in 1..=slots {
                blocked = load * blocked / (n as f64 + load * blocked);
            }
            let waits_at_all = blocked / (1.0 - load / servers * (1.0 - blocked));
            let rate = servers / hold - 1.0 / between;
            let mean = waits_at_all / rate;
            let p90 = (waits_at_all / 0.1).ln().max(0.0) / rate;
            let waits = super::waits(&arrivals, slots);
            assert_eq!(waits.len(), count);
            let share = waits.iter().filter(|wait| **wait > 0).count() as f64 / count as f64;
            let found_mean = waits.iter().sum::<u64>() as f64 / count as f64;
            let found_p90 = replay(&arrivals, slots).waits.p90_ms as f64;
            let is_near = |found: f64, known: f64| (found - known).abs() <= known * 0.25 + 50.0;
            assert!(is_near(share, waits_at_all), "{slots}: {share} of {waits_at_all}");
            assert!(is_near(found_mean, mean), "{slots}: {found_mean} of {mean}");
            assert!(is_near(found_p90, p90), "{slots}: {found_p90} of {p90}");
        }
    }

    /// A table in which the requests ask for their slots.
    #[derive(Default)]
    struct Asked {
        table: Table,
        /// The arrival of each request that has not been granted.
        waiting: BTreeMap<RequestId, Arrival>,
        /// When each hold ends.
        ends: BinaryHeap<Reverse<(u64, FrameId)>>,
        waits: Vec<u64>,
    }

    impl Asked {
        fn apply(&mut self, change: Change, now_ms: u64) {
            let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(now_ms), change };
            let mut outcomes = Vec::new();
            self.table.apply(Revision(self.table.revision().0 + 1), &entry, &mut outcomes);
            for outcome in outcomes {
                if let Outcome::Granted(granted) = outcome {
                    let arrival = self.waiting.remove(&granted.request).unwrap();
                    self.ends.push(Reverse((now_ms + arrival.held_ms, granted.frame)));
                    self.waits.push(now_ms - arrival.asked_ms);
                }
            }
        }

        /// Ends the holds that end by this time, and those that are granted meanwhile.
        fn end_until(&mut self, until_ms: u64) {
            while let Some(Reverse((at_ms, frame))) = self.ends.peek().copied()
                && at_ms <= until_ms
            {
                self.ends.pop();
                self.apply(Change::End { frame }, at_ms);
            }
        }

        fn waits(arrivals: &[Arrival], slots: u64) -> Vec<u64> {
            let mut asked = Self::default();
            for (pid, arrival) in (1..).zip(arrivals) {
                // Holds that end at this time free their slots first, as in a turn of the daemon.
                asked.end_until(arrival.asked_ms);
                let ask = Ask::slots(arrival.count, Some(View::Slots { slots }));
                let request = Request {
                    tag: Tag(pid.into()),
                    owner: Owner::Process(ProcessId { pid, started: 1, inode: 0 }),
                    items: vec![Item { key: Key::new("replay").unwrap(), ask }],
                    wait: Wait::Yes { until: None },
                    ..Request::default()
                };
                let id = RequestId(asked.table.revision().0 + 1);
                asked.waiting.insert(id, *arrival);
                asked.apply(Change::Request(Arc::new(request)), arrival.asked_ms);
            }
            asked.end_until(u64::MAX);
            asked.waits
        }
    }

    /// First come, first served, without the table: each takes the slot that is free first.
    fn by_hand(arrivals: &[(u64, u64)], slots: usize) -> Vec<u64> {
        let mut free_at = vec![0; slots];
        let wait = |(asked, held): &(u64, u64)| {
            let slot = free_at.iter_mut().min().unwrap();
            let begin = (*asked).max(*slot);
            *slot = begin + held;
            begin - asked
        };
        arrivals.iter().map(wait).collect()
    }

    proptest! {
        #[test]
        fn the_lock_table_would_grant_at_the_same_times(
            mut of in proptest::collection::vec((0..3_000_u64, 0..900_u64, 1..5_u64), 0..60),
            slots in 0..6_u64,
        ) {
            of.sort_by_key(|(asked, ..)| *asked);
            let arrivals = arrivals(&of);
            prop_assert_eq!(super::waits(&arrivals, slots), Asked::waits(&arrivals, slots));
        }

        #[test]
        fn requests_are_served_as_a_queue_does(
            mut arrivals in proptest::collection::vec((0..5_000_u64, 0..900_u64), 0..60),
            slots in 1..6_usize,
        ) {
            arrivals.sort_by_key(|(asked, _)| *asked);
            let asked: Vec<_> = arrivals.iter().map(|(asked, held)| (*asked, *held, 1)).collect();
            prop_assert_eq!(waits(&asked, slots as u64), by_hand(&arrivals, slots));
        }

        #[test]
        fn more_slots_never_mean_more_waiting_for_single_slots(
            mut arrivals in proptest::collection::vec((0..5_000_u64, 0..900_u64, 1..2_u64), 1..60),
            slots in 1..6_u64,
        ) {
            arrivals.sort_by_key(|(asked, ..)| *asked);
            let (some, more) = (waits(&arrivals, slots), waits(&arrivals, slots + 1));
            prop_assert!(some.iter().zip(&more).all(|(some, more)| more <= some));
        }
    }

    #[test]
    fn a_quantile_is_one_of_the_lengths() {
        assert_eq!(quantile(&[], 50), 0);
        assert_eq!(quantile(&[7], 50), 7);
        assert_eq!(quantile(&[1, 2, 3, 4], 50), 2);
        assert_eq!(quantile(&[1, 2, 3, 4], 90), 4);
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!((quantile(&hundred, 90), quantile(&hundred, 99)), (90, 99));
    }
}
