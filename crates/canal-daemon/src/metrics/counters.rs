//! The daemon's counters since it started, and all figures at one time.
//!
//! Invariant: counting allocates memory only for the first use of a key, and for at most
//! [`KEYS_MAX`] keys.

use std::collections::BTreeMap;

use canal_core::{Key, Request, Table};
use canal_history::Ending;

/// The most keys with separate figures. The figures of the others are added up.
pub(crate) const KEYS_MAX: usize = 100;

/// The key of the figures of all other keys. A key with this name is one of them.
pub(crate) const OTHER: &str = "other";

/// A key that was not used for this long may be replaced by another one. So a monitoring system
/// that keeps every key it has ever seen learns at most [`KEYS_MAX`] new ones a day.
const UNUSED_MS: u64 = 24 * 3600 * 1000;

/// The number of limits of a histogram.
pub(crate) const BUCKETS: usize = 13;

/// The limits for waits and holds, in microseconds: 10 ms to a day.
pub(crate) const LENGTHS: [u64; BUCKETS] = [
    10_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
    3_600_000_000,
    14_400_000_000,
    86_400_000_000,
];

/// How often each duration occurred, by limits that the caller knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    /// Indexed by the smallest limit that the duration does not exceed; the last count is for
    /// longer ones.
    pub counts: [u64; BUCKETS + 1],
    /// The sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Counts a duration, in microseconds.
    pub(crate) fn add(&mut self, limits: &[u64; BUCKETS], length_us: u64) {
        self.counts[limits.partition_point(|limit| *limit < length_us)] += 1;
        self.sum_us = self.sum_us.saturating_add(length_us);
    }
}

/// The reasons why requests end without a grant.
pub(crate) const REFUSALS: [&str; 9] = [
    "full",
    "paused",
    "max-waiting",
    "deadlock",
    "too-large",
    "mismatch",
    "superseded",
    "timeout",
    "withdrawn",
];

/// The ways in which a hold ends without a release by its owner.
pub(crate) const LOSSES: [&str; 3] = ["expired", "lost", "forced"];

/// The counters of one key, or of all keys without separate figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Series {
    pub grants: u64,
    /// Indexed as [`REFUSALS`].
    pub refusals: [u64; REFUSALS.len()],
    /// How long granted requests waited.
    pub waits: Histogram,
    /// How long ended holds lasted.
    pub holds: Histogram,
    /// The state of the key when it was last looked at.
    pub now: KeyFigures,
    /// When the key was last used, in milliseconds since 1970 UTC.
    used_ms: u64,
}

/// The daemon's counters since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// When counting began, in milliseconds since 1970 UTC.
    pub since_ms: u64,
    pub keys: BTreeMap<Key, Series>,
    /// The counters of all other keys.
    pub other: Series,
    /// The number of deadlocks, each of which ended with a refusal.
    pub deadlocks: u64,
    /// Indexed as [`LOSSES`].
    pub losses: [u64; LOSSES.len()],
    /// Before this time every key is in use, so none can be replaced.
    full_until_ms: u64,
}

impl Counters {
    /// Counters that begin at this time, in milliseconds since 1970 UTC.
    pub(crate) fn since(since_ms: u64) -> Self {
        Self { since_ms, ..Self::default() }
    }

    /// Counts a grant at this time, in milliseconds since 1970 UTC.
    pub(crate) fn granted(&mut self, asked: &Request, at_ms: u64, waited_ms: u64) {
        for item in &asked.items {
            let series = self.series(&item.key, at_ms);
            series.grants += 1;
            series.waits.add(&LENGTHS, waited_ms.saturating_mul(1000));
        }
    }

    /// Counts the end of a request at this time, in milliseconds since 1970 UTC. `held_ms`: how
    /// long it held its locks; `None` if it was never granted.
    pub(crate) fn ended(&mut self, of: &Request, how: &Ending, at_ms: u64, held_ms: Option<u64>) {
        for item in &of.items {
            let series = self.series(&item.key, at_ms);
            match held_ms {
                Some(held_ms) => series.holds.add(&LENGTHS, held_ms.saturating_mul(1000)),
                None => series.refusals[refusal(how)] += 1,
            }
        }
        if held_ms.is_none() {
            self.deadlocks += u64::from(matches!(how, Ending::Deadlock(_)));
        } else if let Some(loss) = index_of(&LOSSES, how) {
            self.losses[loss] += 1;
        }
    }

    /// Whether a key that is used at this time has separate figures.
    pub(crate) fn knows(&mut self, key: &Key, at_ms: u64) -> bool {
        if let Some(series) = self.keys.get_mut(key) {
            series.used_ms = series.used_ms.max(at_ms);
            return true;
        }
        let knows = key.as_str() != OTHER && self.has_room(at_ms);
        if knows {
            self.keys.insert(key.clone(), Series { used_ms: at_ms, ..Series::default() });
        }
        knows
    }

    fn series(&mut self, key: &Key, at_ms: u64) -> &mut Series {
        if self.knows(key, at_ms)
            && let Some(series) = self.keys.get_mut(key)
        {
            return series;
        }
        &mut self.other
    }

    /// Whether there is room for another key, after removing one that was not used for long.
    fn has_room(&mut self, now_ms: u64) -> bool {
        if self.keys.len() < KEYS_MAX {
            return true;
        }
        if now_ms < self.full_until_ms {
            return false;
        }
        let oldest = self.keys.iter().min_by_key(|(_, series)| series.used_ms);
        let Some((key, used_ms)) = oldest.map(|(key, series)| (key.clone(), series.used_ms)) else {
            return false;
        };
        let until_ms = used_ms.saturating_add(UNUSED_MS);
        if now_ms < until_ms {
            self.full_until_ms = until_ms;
            return false;
        }
        self.keys.remove(&key);
        true
    }
}

/// Why a request ended without a grant, as an index in [`REFUSALS`].
fn refusal(ending: &Ending) -> usize {
    // For the last one, its client, its process or its host has ended.
    index_of(&REFUSALS, ending).unwrap_or(REFUSALS.len() - 1)
}

fn index_of(words: &[&str], ending: &Ending) -> Option<usize> {
    words.iter().position(|word| *word == ending.word())
}

/// The most keys of a table that are examined. The others are missing from the figures of the other
/// keys.
const KEYS_LOOKED_AT_MAX: usize = 10_000;

/// The most waiting requests examined to find the oldest one of each key, in the order in which
/// they came.
const WAITERS_LOOKED_AT_MAX: usize = 20_000;

/// The limits for appends to the log of an engine, in microseconds: 0.5 ms to 10 s.
pub(crate) const APPENDS: [u64; BUCKETS] = [
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 10_000_000,
];

/// All figures at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// The counters, with the state of each key.
    pub counters: Counters,
    /// All holds of the table.
    pub holds: u64,
    /// All waiting requests of the table.
    pub waiting: u64,
    pub connections: u64,
    /// How many bytes of the journal are in use; `None` with an engine.
    pub journal_bytes: Option<u64>,
    /// The size of the history in bytes; `None` if it is not known yet, or if there is no history.
    pub history_bytes: Option<u64>,
    /// The number of records that the history dropped.
    pub history_dropped: u64,
    pub engine: Option<EngineFigures>,
}

/// The state of a key, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyFigures {
    /// How many slots are held.
    pub slots: u64,
    /// How many holds there are.
    pub holds: u64,
    /// The number of slots; `None` if it is not fixed.
    pub capacity: Option<u64>,
    pub waiting: u64,
    /// How long the oldest waiting request has waited, in milliseconds; 0 if none waits.
    pub oldest_ms: u64,
    pub paused: bool,
}

/// The figures of the engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineFigures {
    pub is_away: bool,
    pub is_member: bool,
    /// How long it was unreachable since the daemon started, in milliseconds.
    pub away_ms: u64,
    /// How long changes of this host took to come back from the log, by [`APPENDS`].
    pub appends: Histogram,
}

impl Snapshot {
    /// The figures of a table at this time, in milliseconds since 1970 UTC, with the counters. A
    /// key in the table gets separate figures if there is room.
    pub(crate) fn of(table: &Table, counters: &mut Counters, now_ms: u64) -> Self {
        // Keys that are no longer in the table are not held.
        counters.keys.values_mut().for_each(|series| series.now = KeyFigures::default());
        counters.other.now = KeyFigures::default();
        for key in table.keys(None).take(KEYS_LOOKED_AT_MAX) {
            let is_known = counters.knows(key, now_ms);
            let now = &mut counters.series(key, now_ms).now;
            now.slots += table.held_of(key);
            now.holds += table.holders(key).count() as u64;
            now.waiting += table.waiting_for(key) as u64;
            if is_known {
                now.capacity = table.effective_capacity(key);
                now.paused = table.settings(key).paused;
            }
        }
        for waiter in table.waiters().take(WAITERS_LOOKED_AT_MAX) {
            let waits_ms = now_ms.saturating_sub(waiter.since.0);
            for item in &waiter.request.items {
                let Counters { keys, other, .. } = &mut *counters;
                let now = &mut keys.get_mut(&item.key).unwrap_or(other).now;
                now.oldest_ms = now.oldest_ms.max(waits_ms);
            }
        }
        Self {
            counters: counters.clone(),
            holds: table.holds().len() as u64,
            waiting: table.waiters().len() as u64,
            ..Self::default()
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A request for one slot of each of these keys.
    pub(in crate::metrics) fn request(keys: &[&str]) -> Request {
        let items: Vec<_> = keys
            .iter()
            .map(|key| serde_json::json!({ "key": key, "ask": { "counted": { "count": 1 } } }))
            .collect();
        let asked = serde_json::json!({
            "tag": format!("{:032x}", 1), "owner": { "process": { "pid": 1, "started": 2 } },
            "uid": 7, "command": "x", "items": items, "wait": "no"
        });
        serde_json::from_value(asked).unwrap()
    }

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    fn end(counters: &mut Counters, keys: &[&str], ending: &Ending, held_ms: Option<u64>) {
        let asked = request(keys);
        counters.ended(&asked, ending, 1, held_ms);
    }

    #[test]
    fn each_length_is_counted_once_below_the_least_limit_that_it_fits() {
        let mut histogram = Histogram::default();
        for length in [0, 10_000, 10_001, 86_400_000_000, 86_400_000_001, u64::MAX] {
            histogram.add(&LENGTHS, length);
        }
        let mut expected = [0; BUCKETS + 1];
        (expected[0], expected[1], expected[12], expected[13]) = (2, 1, 1, 2);
        assert_eq!(histogram.counts, expected);
        assert_eq!(histogram.sum_us, u64::MAX);
        assert!(LENGTHS.is_sorted());
    }

    #[test]
    fn grants_and_ends_count_for_each_key_of_a_request() {
        let mut counters = Counters::default();
        counters.granted(&request(&["a", "b"]), 1, 700);
        end(&mut counters, &["a", "b"], &Ending::Exited(1), Some(20_000));
        end(&mut counters, &["a"], &Ending::Timeout, None);
        end(&mut counters, &["b"], &Ending::Expired, Some(5));
        let a = &counters.keys[&key("a")];
        assert_eq!((a.grants, a.waits.sum_us, a.holds.sum_us), (1, 700_000, 20_000_000));
        assert_eq!(a.refusals, [0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(counters.keys[&key("b")].holds.counts.iter().sum::<u64>(), 2);
        assert_eq!((counters.losses, counters.deadlocks), ([1, 0, 0], 0));
    }

    #[test]
    fn each_way_to_end_without_a_grant_has_its_name() {
        for (ending, name) in [
            (Ending::Full, "full"),
            (Ending::Paused, "paused"),
            (Ending::MaxWaiting, "max-waiting"),
            (Ending::Deadlock(Vec::new()), "deadlock"),
            (Ending::TooLarge, "too-large"),
            (Ending::Mismatch, "mismatch"),
            (Ending::Superseded, "superseded"),
            (Ending::Timeout, "timeout"),
            (Ending::Withdrawn, "withdrawn"),
            (Ending::Abandoned, "withdrawn"),
            (Ending::Ended, "withdrawn"),
        ] {
            assert_eq!(REFUSALS[refusal(&ending)], name, "{ending:?}");
        }
        for (ending, name) in [
            (Ending::Expired, "expired"),
            (Ending::Lost, "lost"),
            (Ending::Forced { by: None }, "forced"),
        ] {
            assert_eq!(index_of(&LOSSES, &ending).map(|it| LOSSES[it]), Some(name));
        }
        let mut counters = Counters::default();
        // A deadlock over two keys counts once.
        end(&mut counters, &["a", "b"], &Ending::Deadlock(Vec::new()), None);
        assert_eq!(counters.deadlocks, 1);
    }

    #[test]
    fn more_keys_than_there_is_room_for_are_counted_together() {
        let mut counters = Counters::default();
        for n in 0..3 * KEYS_MAX {
            counters.granted(&request(&[&format!("job/{n}")]), 1000, 1);
        }
        assert_eq!(counters.keys.len(), KEYS_MAX);
        assert_eq!(counters.other.grants, 2 * KEYS_MAX as u64);
        counters.granted(&request(&["job/7", "job/250"]), 1000, 1);
        assert_eq!(counters.keys[&key("job/7")].grants, 2);
        assert_eq!(counters.other.grants, 2 * KEYS_MAX as u64 + 1);
    }

    #[test]
    fn a_key_that_was_not_used_for_a_day_makes_way() {
        let mut counters = Counters::default();
        for n in 0..KEYS_MAX {
            counters.granted(&request(&[&format!("job/{n}")]), 1000 + n as u64, 1);
        }
        counters.granted(&request(&["job/0"]), 5000, 1);
        let day = UNUSED_MS;
        assert!(!counters.knows(&key("late"), 1000 + day));
        assert!(counters.knows(&key("late"), 1001 + day));
        assert!(!counters.keys.contains_key(&key("job/1")));
        assert!(counters.keys.contains_key(&key("job/0")));
        assert!(!counters.knows(&key("later"), 1001 + day), "the next one is used until later");
        assert!(counters.knows(&key("later"), 1002 + day));
        assert_eq!(counters.keys.len(), KEYS_MAX);
    }

    #[test]
    fn a_key_with_the_name_of_the_others_is_one_of_them() {
        let mut counters = Counters::default();
        counters.granted(&request(&[OTHER]), 1, 1);
        assert!(counters.keys.is_empty());
        assert_eq!(counters.other.grants, 1);
    }
    use std::sync::Arc;

    use canal_core::{Change, ENTRY_VERSION, Entry, Request, Revision, Setting, UnixMillis, View};

    /// A table to which each change is applied one second after the previous one.
    fn table(changes: Vec<Change>) -> Table {
        let mut table = Table::default();
        for (number, change) in (1..).zip(changes) {
            let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(number * 1000), change };
            table.apply(Revision(number), &entry, &mut Vec::new());
        }
        table
    }

    fn ask(pid: u32, keys: &[&str], write: bool) -> Change {
        let ask = if write {
            serde_json::json!("write")
        } else {
            serde_json::json!({ "counted": { "count": 1, "view": { "slots": { "slots": 1 } } } })
        };
        let items: Vec<_> =
            keys.iter().map(|key| serde_json::json!({ "key": key, "ask": ask })).collect();
        let asked = serde_json::json!({
            "tag": format!("{pid:032x}"), "owner": { "process": { "pid": pid, "started": 2 } },
            "uid": 7, "command": "x", "items": items, "wait": { "yes": {} }
        });
        let request: Request = serde_json::from_value(asked).unwrap();
        Change::Request(Arc::new(request))
    }

    fn seen(table: &Table, now_ms: u64) -> Snapshot {
        Snapshot::of(table, &mut Counters::default(), now_ms)
    }

    #[test]
    fn holds_waits_and_sizes_are_those_of_the_table() {
        let set = |setting| Change::Set { key: key("idle"), setting };
        let changes = vec![
            ask(1, &["a"], false),
            ask(2, &["a", "b"], false),
            ask(3, &["a"], false),
            ask(4, &["w"], true),
            set(Setting::View(Some(View::Slots { slots: 4 }))),
            set(Setting::Paused(true)),
        ];
        let found = seen(&table(changes), 10_000);
        assert_eq!((found.holds, found.waiting), (2, 2));
        let a = &found.counters.keys[&key("a")].now;
        assert_eq!((a.slots, a.holds, a.waiting, a.oldest_ms), (1, 1, 2, 8_000));
        let b = &found.counters.keys[&key("b")].now;
        assert_eq!((b.slots, b.holds, b.waiting, b.oldest_ms), (0, 0, 1, 8_000));
        let w = &found.counters.keys[&key("w")].now;
        assert_eq!((w.slots, w.holds, w.capacity), (0, 1, None), "a writer has no slot");
        let idle = &found.counters.keys[&key("idle")].now;
        assert_eq!((idle.capacity, idle.paused, idle.oldest_ms), (Some(4), true, 0));
    }

    #[test]
    fn the_state_of_the_keys_beyond_the_bound_is_one() {
        let names: Vec<String> = (0..KEYS_MAX + 7).map(|n| format!("job/{n:04}")).collect();
        let mut changes: Vec<Change> =
            (1..).zip(&names).map(|(pid, name)| ask(pid, &[name.as_str()], false)).collect();
        let last = names.last().unwrap().as_str();
        changes.push(ask(9_999, &[last], false));
        let count = changes.len() as u64;
        let found = seen(&table(changes), (count + 5) * 1000);
        assert_eq!(found.counters.keys.len(), KEYS_MAX);
        let other = &found.counters.other.now;
        assert_eq!((other.slots, other.holds, other.waiting), (7, 7, 1));
        assert_eq!((other.oldest_ms, other.capacity), (5_000, None));
    }

    #[test]
    fn a_key_that_was_used_is_told_with_zeros_when_nothing_is_left_of_it() {
        let mut counters = Counters::default();
        assert!(counters.knows(&key("gone"), 1));
        let found = Snapshot::of(&Table::default(), &mut counters, 2);
        assert_eq!(found.counters.keys[&key("gone")].now, KeyFigures::default());
    }
}
