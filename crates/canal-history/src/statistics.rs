//! Counts waits and holds of the records that fit: in total, by user, by command and by key. For a
//! single key, also computes how long its requests would have waited with another number of slots.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::file_format::Frames;
use super::histogram::{Bins, Histogram};
use super::record::Record;
use super::search::Query;
use super::simulate_size::{ARRIVALS_MAX, Arrival, replay, sizes_to_try};
use super::store::Store;
use super::timeline::Timeline;
use canal_core::Mode;
use canal_protocol::{HistoryCount, HistoryKeyUse, HistorySlots, HistoryStats};
use canal_text::time::utc;

/// The most users and commands that are counted separately. Others count only in the totals.
const GROUPS_MAX: usize = 1_000;

/// The most users, and the most commands, of a report.
const GROUPS_SHOWN_MAX: usize = 100;

/// At least this many commands that differ only in numbers, such as those of a job array, form a
/// group.
const ALIKE_MIN: usize = 3;

/// The most keys that are counted separately: each has a timeline.
const KEYS_MAX: usize = 100;

/// The most keys of a report, each with its use over time.
const KEYS_SHOWN_MAX: usize = 20;

/// The counts of many records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counted {
    /// The waits of granted requests.
    waits: Histogram,
    /// How long they held their locks.
    holds: Histogram,
    /// How many were never granted.
    refused: u64,
}

/// All counts of a query.
#[derive(Debug, Default)]
struct Counts {
    all: Counted,
    /// All waits, in bins.
    wait_bins: Bins,
    /// All holds, in bins.
    hold_bins: Bins,
    users: BTreeMap<u32, Counted>,
    /// The counts by user and command, for the commands that the caller may see.
    commands: BTreeMap<(u32, String), Counted>,
    /// The use of each key of the query.
    keys: BTreeMap<String, KeyUse>,
    /// Whether there were too many users, commands or keys to count them all separately.
    left_out: bool,
    /// The waits with other numbers of slots, if slots of the query's key were granted.
    slots: Option<HistorySlots>,
}

/// How much a key was used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KeyUse {
    /// The number of granted requests.
    granted: u64,
    /// The size that the latest request passed or was given; 0 if none asked for slots.
    size: u64,
    /// When that request ended.
    size_ms: u64,
    /// Slots in use; each reader and writer counts as one.
    used: Timeline,
}

/// The current state, which the files do not have.
#[derive(Clone, Debug, Default)]
pub struct Present {
    /// The current time, in milliseconds since 1970 UTC.
    pub now_ms: u64,
    /// The stored size of the query's key.
    pub stored: Option<u64>,
    /// The current holds.
    pub running: Vec<Running>,
}

/// A current hold of a key.
#[derive(Clone, Debug)]
pub struct Running {
    pub key: String,
    /// When it began, in milliseconds since 1970 UTC.
    pub since_ms: u64,
    /// The number of slots; 1 for a read or a write.
    pub slots: u64,
}

/// A count in progress.
#[derive(Debug, Default)]
pub struct Tally {
    query: Query,
    /// Only the commands of this user are counted separately; `None` means all.
    viewer: Option<u32>,
    present: Present,
    below: u64,
    /// The granted requests for the key of the query, the latest file first.
    arrivals: Vec<Arrival>,
    /// The numbers of slots still to try; `None` while files are read.
    to_try: Option<BTreeSet<u64>>,
    counts: Counts,
}

impl Tally {
    pub fn new(query: Query, viewer: Option<u32>, present: Present) -> Self {
        Self { query, viewer, present, below: u64::MAX, ..Self::default() }
    }

    /// Counts the next file, or tries the next number of slots. Returns whether all is done.
    pub fn step(&mut self, store: &Store) -> bool {
        let Some(sizes) = &mut self.to_try else {
            if self.read_next(store) {
                self.add_running();
                self.to_try = Some(self.sizes());
            }
            return false;
        };
        let Some(slots) = sizes.pop_first() else { return true };
        if let Some(table) = &mut self.counts.slots {
            table.rows.push(replay(&self.arrivals, slots));
        }
        false
    }

    /// Counts the next file. Returns whether all are counted.
    fn read_next(&mut self, store: &Store) -> bool {
        let Some((segment, bytes)) = store.read_before(&mut self.below) else { return true };
        let before = self.arrivals.len();
        for frame in Frames::of(&bytes).into_iter().flatten() {
            if self.query.may_fit(&frame)
                && let Some(record) = frame.record()
                && self.query.fits(&record)
            {
                self.count(&record);
                self.count_use(&record, before < ARRIVALS_MAX);
            }
        }
        // Within a file, the latest come last.
        if let Some(added) = self.arrivals.get_mut(before..) {
            added.reverse();
        }
        segment.first_ms < self.query.since_ms
    }

    /// Adds a hold to the keys of the query.
    fn count_use(&mut self, record: &Record<'_>, collects: bool) {
        let Some(held_ms) = record.held_ms else { return };
        let (asked_ms, since_ms) = (record.asked_ms(), self.query.since_ms);
        let begin_ms = record.ended_ms.saturating_sub(held_ms).max(since_ms);
        for item in record.items.iter().filter(|item| self.query.is_about(&item.key)) {
            let is_counted = item.mode == Mode::Counted;
            // It is unknown how long a hold with an unseen end would have lasted.
            let is_whole = !record.at_least;
            let is_it = self.query.key.as_deref() == Some(&*item.key);
            if collects && is_whole && is_counted && is_it {
                self.arrivals.push(Arrival { asked_ms, held_ms, count: item.count });
            }
            let Some(of) = self.counts.use_of(&item.key) else { continue };
            of.granted += 1;
            if is_counted && record.ended_ms >= of.size_ms {
                (of.size, of.size_ms) = (item.size, record.ended_ms);
            }
            of.used.add_wait(asked_ms.max(since_ms), begin_ms);
            of.used.add(begin_ms, record.ended_ms, if is_counted { item.count } else { 1 });
            if is_counted {
                of.used.note_size(begin_ms, item.size);
            }
        }
    }

    /// Adds the current holds, and extends each timeline to now.
    fn add_running(&mut self) {
        let now_ms = self.present.now_ms;
        for held in std::mem::take(&mut self.present.running) {
            if let Some(of) = self.counts.use_of(&held.key) {
                of.used.add(held.since_ms.max(self.query.since_ms), now_ms, held.slots);
            }
        }
        for of in self.counts.keys.values_mut() {
            of.used.reach(now_ms);
        }
    }

    /// The numbers of slots to try for the key that the query names.
    fn sizes(&mut self) -> BTreeSet<u64> {
        let Some(key) = &self.query.key else { return BTreeSet::new() };
        let of = self.counts.keys.get(key);
        let present = self.present.stored.or(of.map(|of| of.size)).unwrap_or(0);
        let more = self.arrivals.len() > ARRIVALS_MAX;
        self.arrivals.truncate(ARRIVALS_MAX);
        self.arrivals.sort_by_key(|arrival| arrival.asked_ms);
        if present == 0 || self.arrivals.is_empty() {
            return BTreeSet::new();
        }
        let (key, requests) = (key.clone(), self.arrivals.len() as u64);
        self.counts.slots = Some(HistorySlots { key, present, requests, more, rows: Vec::new() });
        sizes_to_try(present)
    }

    fn count(&mut self, record: &Record<'_>) {
        let Counts { all, wait_bins, hold_bins, users, commands, left_out, .. } = &mut self.counts;
        all.add(record);
        if let Some(held_ms) = record.held_ms {
            wait_bins.add(record.waited_ms);
            if !record.at_least {
                hold_bins.add(held_ms);
            }
        }
        let uid = record.uid;
        *left_out |= group(users, uid, GROUPS_MAX).map(|of| of.add(record)).is_none();
        if self.viewer.is_none_or(|viewer| viewer == uid) {
            let of_command = group(commands, (uid, record.command.to_string()), GROUPS_MAX);
            *left_out |= of_command.map(|of| of.add(record)).is_none();
        }
    }

    /// The report. `stored` looks up the stored size of a key.
    pub fn report(&self, stored: impl Fn(&str) -> Option<u64>) -> HistoryStats {
        let counts = &self.counts;
        let users = counts.users.iter().map(|(uid, of)| of.shown(Some(*uid), None));
        let (users, more_users) = most(users.collect());
        let (commands, more_commands) = most(counts.command_groups());
        let is_other = |key| self.query.key.as_ref() != Some(key);
        let mut keys: Vec<_> = counts.keys.iter().collect();
        // The key of the query, then the most used keys.
        keys.sort_by_key(|(key, of)| (is_other(key), Reverse(of.used.sum())));
        let shown = keys.iter().take(KEYS_SHOWN_MAX);
        let span = (self.query.since_ms, self.present.now_ms);
        let shown = shown.map(|(key, of)| of.shown(key, stored(key), span));
        HistoryStats {
            all: counts.all.shown(None, None),
            users,
            commands,
            wait_bins: counts.wait_bins.filled(),
            hold_bins: counts.hold_bins.filled(),
            keys: shown.collect(),
            slots: counts.slots.clone(),
            left_out: counts.left_out || more_users || more_commands || keys.len() > KEYS_SHOWN_MAX,
            dropped: 0,
        }
    }
}

/// The groups with the most records. Also returns whether there are more.
fn most(mut groups: Vec<HistoryCount>) -> (Vec<HistoryCount>, bool) {
    groups.sort_by_key(|of| Reverse(of.count));
    let has_more = groups.len() > GROUPS_SHOWN_MAX;
    groups.truncate(GROUPS_SHOWN_MAX);
    (groups, has_more)
}

/// The counts of a group, unless that many groups are already counted.
fn group<K: Ord, V: Default>(groups: &mut BTreeMap<K, V>, of: K, most: usize) -> Option<&mut V> {
    let has_room = groups.len() < most || groups.contains_key(&of);
    has_room.then(|| groups.entry(of).or_default())
}

impl Counts {
    /// The commands, with those that differ only in numbers as one group if there are several.
    fn command_groups(&self) -> Vec<HistoryCount> {
        let mut alike = BTreeMap::<(u32, String), Vec<(&String, &Counted)>>::new();
        for ((uid, command), of) in &self.commands {
            alike.entry((*uid, without_numbers(command))).or_default().push((command, of));
        }
        let mut groups = Vec::new();
        for ((uid, command), members) in alike {
            if members.len() < ALIKE_MIN {
                let each = members.iter();
                groups.extend(each.map(|(command, of)| of.shown(Some(uid), Some(command))));
                continue;
            }
            let mut counted = Counted::default();
            members.iter().for_each(|(_, of)| counted.join(of));
            let commands = Some(members.len() as u64);
            groups.push(HistoryCount { commands, ..counted.shown(Some(uid), Some(&command)) });
        }
        groups
    }

    /// The use of a key, unless too many keys are already counted.
    fn use_of(&mut self, key: &str) -> Option<&mut KeyUse> {
        let of = group(&mut self.keys, key.to_owned(), KEYS_MAX);
        self.left_out |= of.is_none();
        of
    }
}

impl KeyUse {
    /// The use of a key with this stored size, as reports show it for a time.
    fn shown(&self, key: &str, stored: Option<u64>, (from_ms, to_ms): (u64, u64)) -> HistoryKeyUse {
        let mut sizes = self.used.sizes();
        // The last bucket has the stored size, even if nothing was granted since.
        if let (Some(last), Some(stored)) = (sizes.last_mut(), stored.filter(|size| *size > 0)) {
            *last = stored;
        }
        HistoryKeyUse {
            key: key.to_owned(),
            granted: self.granted,
            size: stored.or(Some(self.size).filter(|size| *size > 0)),
            used_ms: self.used.sum(),
            from: utc(self.used.begin_ms().max(from_ms)),
            until: utc(to_ms),
            bucket_ms: self.used.width_ms(),
            used: self.used.of_each(|bucket| bucket.used),
            sizes,
            waited: self.used.of_each(|bucket| bucket.waited),
        }
    }
}

/// Replaces each run of digits with `#`.
fn without_numbers(command: &str) -> String {
    let mut text = String::with_capacity(command.len());
    for character in command.chars() {
        match character {
            '0'..='9' if text.ends_with('#') => {}
            '0'..='9' => text.push('#'),
            other => text.push(other),
        }
    }
    text
}

impl Counted {
    fn join(&mut self, other: &Self) {
        self.waits.join(&other.waits);
        self.holds.join(&other.holds);
        self.refused += other.refused;
    }

    fn add(&mut self, record: &Record<'_>) {
        match record.held_ms {
            Some(held_ms) => {
                self.waits.add(record.waited_ms);
                if !record.at_least {
                    self.holds.add(held_ms);
                }
            }
            None => self.refused += 1,
        }
    }

    /// The counts as reports show them.
    fn shown(&self, uid: Option<u32>, command: Option<&String>) -> HistoryCount {
        HistoryCount {
            uid,
            command: command.cloned(),
            commands: None,
            count: self.waits.count + self.refused,
            refused: self.refused,
            waits: self.waits.quantiles(),
            holds: self.holds.quantiles(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_space::Limits;
    use crate::record::{Ending, Item, tests::record};

    #[test]
    fn records_are_counted_by_user_and_by_the_commands_that_may_be_seen() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
        let (mut store, _) = Store::open(dir.path(), limits).unwrap();
        let full = Ending::Full;
        let all: Vec<Record<'static>> = (1..=6_000_u32)
            .map(|n| {
                let of = record(n.into(), if n % 2 == 0 { "a" } else { "b" }, n % 3);
                let command = format!("job {}", n % 2).into();
                let granted = Record { waited_ms: n.into(), command, ..of };
                if n % 10 == 0 {
                    Record { held_ms: None, ending: full.clone(), ..granted }
                } else {
                    granted
                }
            })
            .collect();
        store.append(&all.iter().collect(), 0).unwrap();
        let count = |query: Query, viewer| {
            let mut tally = Tally::new(query, viewer, Present::default());
            while !tally.step(&store) {}
            tally.counts
        };
        let counts = count(Query::default(), None);
        let all = counts.all.shown(None, None);
        assert_eq!((all.count, all.refused), (6_000, 600));
        assert_eq!((all.waits.max_ms, all.holds.median_ms), (5_999, 300));
        assert_eq!(counts.users.len(), 3);
        assert!(counts.users.values().all(|user| user.shown(None, None).count == 2_000));
        assert_eq!(counts.commands.len(), 6);
        assert!(!counts.left_out);
        let of_a = count(Query { key: Some("a".to_owned()), ..Query::default() }, Some(1));
        assert_eq!(of_a.all.shown(None, None).count, 3_000);
        let commands: Vec<_> = of_a.commands.keys().cloned().collect();
        assert_eq!(commands, [(1, "job 0".to_owned())]);
        assert_eq!(of_a.users.len(), 3);
    }

    #[test]
    fn a_hold_whose_end_nobody_saw_has_a_wait_and_no_length() {
        let mut records = steady(8);
        records[7].at_least = true;
        let counts = counted(&records, Some("a"), 0, Present::default());
        assert_eq!((counts.all.waits.count, counts.all.holds.count), (8, 7));
        assert_eq!(counts.keys["a"].granted, 8);
        assert_eq!(counts.slots.unwrap().requests, 7);
    }

    #[test]
    fn many_commands_take_no_more_room_than_some() {
        let mut tally = Tally::new(Query::default(), None, Present::default());
        for n in 0..2 * GROUPS_MAX {
            let command = n.to_string().into();
            let record = Record { command, ..record(5_000, &format!("k/{n}"), 1) };
            tally.count(&record);
            tally.count_use(&record, true);
        }
        assert_eq!(tally.counts.keys.len(), KEYS_MAX);
        assert!(tally.arrivals.is_empty(), "no key was asked for");
        assert_eq!(tally.counts.commands.len(), GROUPS_MAX);
        assert!(tally.counts.left_out);
        assert_eq!(tally.counts.all.shown(None, None).count, 2 * GROUPS_MAX as u64);
    }

    /// Requests for slots of `a`, one each second, each for three seconds, of which two hold at
    /// once: each pair waits a second longer than the pair before. One in three also reads `b`.
    fn steady(count: u64) -> Vec<Record<'static>> {
        let of = |n: u64| {
            let waited_ms = n / 2 * 1000;
            let ended_ms = n * 1000 + waited_ms + 3000;
            let item = |key: &str, mode, size| {
                let count = size / 2;
                Item { key: key.to_owned().into(), mode, count, size, slots: Vec::new().into() }
            };
            let mut items = vec![item("a", Mode::Counted, 2)];
            if n.is_multiple_of(3) {
                items.push(item("b", Mode::Read, 0));
            }
            let held_ms = Some(3000);
            Record { items, waited_ms, held_ms, ..record(ended_ms, "a", 0) }
        };
        (0..count).map(of).collect()
    }

    fn counted(
        records: &[Record<'static>],
        key: Option<&str>,
        since_ms: u64,
        present: Present,
    ) -> Counts {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
        let (mut store, _) = Store::open(dir.path(), limits).unwrap();
        store.append(&records.iter().collect(), 0).unwrap();
        let query = Query { key: key.map(str::to_owned), since_ms, ..Query::default() };
        let mut tally = Tally::new(query, None, present);
        while !tally.step(&store) {}
        tally.counts
    }

    #[test]
    fn use_over_time_has_what_ended_and_what_is_held_now() {
        let running = |key: &str, since_ms| Running { key: key.to_owned(), since_ms, slots: 1 };
        let present = || Present {
            now_ms: 20_000,
            stored: None,
            running: vec![running("a", 15_000), running("c", 19_500)],
        };
        let counts = counted(&steady(8), None, 0, present());
        let of_a = &counts.keys["a"];
        assert_eq!((of_a.granted, of_a.size), (8, 2));
        // The first holds until second 3, the second from 1 to 4, the third from 3 to 6, and so on.
        let seconds = of_a.used.of_each(|bucket| bucket.used / 1000);
        assert_eq!(seconds, [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 0, 0, 1, 1, 1, 1, 1, 0]);
        assert_eq!(counts.keys["b"].granted, 3);
        assert_eq!(counts.keys["c"].used.sum(), 500);
        assert!(counts.slots.is_none(), "no key was asked for");
        let later = counted(&steady(8), Some("a"), 5_500, present());
        assert_eq!(later.keys["a"].used.of_each(|bucket| bucket.used)[..2], [1_000, 2_000]);
        assert_eq!(later.keys["a"].used.begin_ms(), 5_000);
    }

    #[test]
    fn another_number_of_slots_would_have_meant_these_waits() {
        let counts = counted(&steady(8), Some("a"), 0, Present::default());
        let table = counts.slots.unwrap();
        assert_eq!((table.present, table.requests, table.more), (2, 8, false));
        let found: Vec<_> = table
            .rows
            .iter()
            .map(|row| (row.slots, row.waits.median_ms, row.waits.max_ms))
            .collect();
        // With three slots, no request waits. With two, the pairs wait 0, 1, 2 and 3 s; with one,
        // each waits 2 s longer than the one before.
        let expected = [(1, 6_000, 14_000), (2, 1_000, 3_000), (3, 0, 0), (4, 0, 0)];
        assert_eq!(found, expected);
        let stored = Present { stored: Some(5), ..Present::default() };
        let table = counted(&steady(8), Some("a"), 0, stored).slots.unwrap();
        let sizes: Vec<_> = table.rows.iter().map(|row| row.slots).collect();
        assert_eq!((table.present, sizes), (5, vec![3, 4, 5, 6, 7, 10]));
        let of_readers = counted(&steady(8), Some("b"), 0, Present::default());
        assert!(of_readers.slots.is_none(), "it has no slots");
    }
}
