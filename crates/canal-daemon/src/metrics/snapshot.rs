//! All figures at one time.

use std::collections::BTreeMap;

use crate::metrics::counters::{BUCKETS, Counters, Histogram};
use canal_core::{Key, Table};

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
    pub counters: Counters,
    /// The figures of the keys that have separate figures.
    pub keys: BTreeMap<Key, KeyFigures>,
    /// The figures of all other keys that were examined.
    pub other: KeyFigures,
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
        let (mut keys, mut other) = (BTreeMap::new(), KeyFigures::default());
        for key in table.keys(None).take(KEYS_LOOKED_AT_MAX) {
            let figures = KeyFigures {
                slots: table.held_of(key),
                holds: table.holders(key).count() as u64,
                capacity: table.effective_capacity(key),
                waiting: table.waiting_for(key) as u64,
                oldest_ms: 0,
                paused: table.is_paused(key),
            };
            if counters.knows(key, now_ms) {
                keys.insert(key.clone(), figures);
            } else {
                other.slots += figures.slots;
                other.holds += figures.holds;
                other.waiting += figures.waiting;
            }
        }
        for waiter in table.waiters().take(WAITERS_LOOKED_AT_MAX) {
            let waits_ms = now_ms.saturating_sub(waiter.since.0);
            for item in &waiter.request.items {
                let figures = keys.get_mut(&item.key).unwrap_or(&mut other);
                figures.oldest_ms = figures.oldest_ms.max(waits_ms);
            }
        }
        // Keys that are no longer in the table are not held.
        for key in counters.keys.keys() {
            keys.entry(key.clone()).or_default();
        }
        Self {
            counters: counters.clone(),
            keys,
            other,
            holds: table.held() as u64,
            waiting: table.waiting() as u64,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::counters::KEYS_MAX;
    use canal_core::{Change, ENTRY_VERSION, Entry, Request, Revision, UnixMillis, View};

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

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    #[test]
    fn holds_waits_and_sizes_are_those_of_the_table() {
        let stored = Change::Resize { key: key("idle"), view: Some(View::Slots { slots: 4 }) };
        let changes = vec![
            ask(1, &["a"], false),
            ask(2, &["a", "b"], false),
            ask(3, &["a"], false),
            ask(4, &["w"], true),
            stored,
            Change::Pause { key: key("idle"), paused: true },
        ];
        let found = seen(&table(changes), 10_000);
        assert_eq!((found.holds, found.waiting), (2, 2));
        let a = &found.keys[&key("a")];
        assert_eq!((a.slots, a.holds, a.waiting, a.oldest_ms), (1, 1, 2, 8_000));
        let b = &found.keys[&key("b")];
        assert_eq!((b.slots, b.holds, b.waiting, b.oldest_ms), (0, 0, 1, 8_000));
        let w = &found.keys[&key("w")];
        assert_eq!((w.slots, w.holds, w.capacity), (0, 1, None), "a writer has no slot");
        let idle = &found.keys[&key("idle")];
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
        assert_eq!(found.keys.len(), KEYS_MAX);
        let other = &found.other;
        assert_eq!((other.slots, other.holds, other.waiting), (7, 7, 1));
        assert_eq!((other.oldest_ms, other.capacity), (5_000, None));
    }

    #[test]
    fn a_key_that_was_used_is_told_with_zeros_when_nothing_is_left_of_it() {
        let mut counters = Counters::default();
        assert!(counters.knows(&key("gone"), 1));
        let found = Snapshot::of(&Table::default(), &mut counters, 2);
        assert_eq!(found.keys[&key("gone")], KeyFigures::default());
    }
}
