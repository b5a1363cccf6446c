//! Counts waits and holds: of all records that fit, by user, and by command.

use std::collections::BTreeMap;

use super::encoding::Lengths;
use super::search::Query;
use super::segment::Frames;
use super::store::Store;

/// Users and commands that are counted at once. The rest is part of all records only.
const GROUPS_MAX: usize = 1_000;

/// What is counted of many records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// The waits of those that were granted.
    pub(crate) waits: Histogram,
    /// How long they held their locks.
    pub(crate) holds: Histogram,
    /// How many were never granted.
    pub(crate) refused: u64,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) all: Counted,
    pub(crate) users: BTreeMap<u32, Counted>,
    /// By user and command, as far as the caller may see commands.
    pub(crate) commands: BTreeMap<(u32, String), Counted>,
    /// Whether there were more users or commands than are counted at once.
    pub(crate) left_out: bool,
}

/// A count under way.
#[derive(Debug)]
pub(crate) struct Tally {
    query: Query,
    /// Only the commands of this user are told apart; `None` means all.
    viewer: Option<u32>,
    below: u64,
    pub(crate) counts: Counts,
}

impl Tally {
    pub(crate) fn new(query: Query, viewer: Option<u32>) -> Self {
        Self { query, viewer, below: u64::MAX, counts: Counts::default() }
    }

    /// Counts the next file. Returns whether all are counted.
    pub(crate) fn step(&mut self, store: &Store) -> bool {
        let Some(segment) = store.last_before(self.below) else { return true };
        self.below = segment.first;
        let bytes = store.read(segment);
        for frame in Frames::of(&bytes).into_iter().flatten() {
            if self.query.fits(&frame)
                && let Some(lengths) = frame.lengths()
            {
                self.count(&lengths);
            }
        }
        segment.first_ms < self.query.since_ms
    }

    fn count(&mut self, lengths: &Lengths<'_>) {
        self.counts.all.add(lengths);
        let uid = lengths.uid;
        let users = &mut self.counts.users;
        if users.len() < GROUPS_MAX || users.contains_key(&uid) {
            users.entry(uid).or_default().add(lengths);
        } else {
            self.counts.left_out = true;
        }
        if self.viewer.is_none_or(|viewer| viewer == uid) {
            let commands = &mut self.counts.commands;
            let group = (uid, lengths.command.to_owned());
            if commands.len() < GROUPS_MAX || commands.contains_key(&group) {
                commands.entry(group).or_default().add(lengths);
            } else {
                self.counts.left_out = true;
            }
        }
    }
}

impl Counted {
    fn add(&mut self, lengths: &Lengths<'_>) {
        match lengths.held_ms {
            Some(held_ms) => {
                self.waits.add(lengths.waited_ms);
                self.holds.add(held_ms);
            }
            None => self.refused += 1,
        }
    }

    /// How many records there are.
    pub(crate) fn count(&self) -> u64 {
        self.waits.count + self.refused
    }
}

/// Each power of two is divided into this many parts: a quantile is at most 1/32 too large.
const PARTS: u64 = 32;

/// How often each length of time occurred. The lengths are rounded, so that a million of them take no
/// more room than ten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    parts: BTreeMap<u32, u64>,
    count: u64,
    max: u64,
}

/// What is told of many lengths of time, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quantiles {
    pub(crate) median: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

impl Histogram {
    pub(crate) fn add(&mut self, length: u64) {
        *self.parts.entry(part(length)).or_default() += 1;
        self.count += 1;
        self.max = self.max.max(length);
    }

    pub(crate) fn quantiles(&self) -> Quantiles {
        Quantiles {
            median: self.quantile(50),
            p90: self.quantile(90),
            p99: self.quantile(99),
            max: self.max,
        }
    }

    /// The least length that at least so many percent do not exceed; 0 of none.
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

/// In which part a length lies: lengths below `PARTS` have one each.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::record::{Ending, Reason, Record, tests::record};
    use crate::history::store::Limits;

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
            // A permutation of 1 to `count`: 7 divides none of them but as a factor of its own.
            let lengths: Vec<u64> = (1..=count).collect();
            lengths.iter().rev().for_each(|length| histogram.add(*length));
            let found = histogram.quantiles();
            assert_eq!((histogram.count, found.max), (count, count));
            for (quantile, percent) in [(found.median, 50), (found.p90, 90), (found.p99, 99)] {
                let exact = lengths[(count * percent).div_ceil(100) as usize - 1];
                assert!(
                    quantile >= exact && quantile - exact <= exact / PARTS,
                    "{percent}: {found:?}"
                );
            }
        }
        assert_eq!(Histogram::default().quantiles(), Quantiles::default());
    }

    #[test]
    fn records_are_counted_by_user_and_by_the_commands_that_may_be_seen() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
        let (mut store, _) = Store::open(dir.path(), limits).unwrap();
        let full = Ending::Refused { reason: Reason::Full, ring: Vec::new() };
        let all: Vec<Record> = (1..=6_000_u32)
            .map(|n| {
                let of = record(n.into(), if n % 2 == 0 { "a" } else { "b" }, n % 3);
                let command = format!("job {}", n % 2);
                let granted = Record { waited_ms: n.into(), command, ..of };
                if n % 10 == 0 {
                    Record { held_ms: None, ending: full.clone(), ..granted }
                } else {
                    granted
                }
            })
            .collect();
        store.append(&all, 0).unwrap();
        let count = |query: Query, viewer| {
            let mut tally = Tally::new(query, viewer);
            while !tally.step(&store) {}
            tally.counts
        };
        let counts = count(Query::default(), None);
        assert_eq!((counts.all.count(), counts.all.refused), (6_000, 600));
        assert_eq!(counts.all.waits.quantiles().max, 5_999);
        assert_eq!(counts.all.holds.quantiles().median, 300);
        assert_eq!(counts.users.len(), 3);
        assert!(counts.users.values().all(|user| user.count() == 2_000));
        assert_eq!(counts.commands.len(), 6);
        assert!(!counts.left_out);
        let of_a = count(Query { key: Some("a".to_owned()), ..Query::default() }, Some(1));
        assert_eq!(of_a.all.count(), 3_000);
        let commands: Vec<_> = of_a.commands.keys().cloned().collect();
        assert_eq!(commands, [(1, "job 0".to_owned())]);
        assert_eq!(of_a.users.len(), 3);
    }

    #[test]
    fn many_commands_take_no_more_room_than_some() {
        let mut tally = Tally::new(Query::default(), None);
        for n in 0..2 * GROUPS_MAX {
            let command = n.to_string();
            tally.count(&Lengths { uid: 1, waited_ms: 1, held_ms: Some(1), command: &command });
        }
        assert_eq!(tally.counts.commands.len(), GROUPS_MAX);
        assert!(tally.counts.left_out);
        assert_eq!(tally.counts.all.count(), 2 * GROUPS_MAX as u64);
    }
}
