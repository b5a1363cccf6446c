//! The recent holds of each key and each command, from which estimates are made.
//!
//! It is small and cheap to copy: copies share all keys that have not changed since.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::sample::{Recent, Sample};
use crate::form::{Batch, Frames, Lengths};
use crate::store::Store;
use canal_core::Mode;

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
        let (mut segments, mut below, mut bytes) = (Vec::new(), u64::MAX, 0);
        while bytes < BYTES_READ
            && let Some(segment) = store.last_before(below)
        {
            below = segment.first;
            bytes += segment.bytes;
            segments.push(segment);
        }
        let mut summary = Self::default();
        for segment in segments.into_iter().rev() {
            let bytes = store.read(segment);
            for frame in Frames::of(&bytes).into_iter().flatten() {
                if let Some(lengths) = frame.lengths() {
                    summary.add_lengths(&lengths);
                }
            }
        }
        summary
    }

    fn add_lengths(&mut self, lengths: &Lengths<'_>) {
        let Some(held_ms) = lengths.held_ms.filter(|_| !lengths.at_least) else { return };
        for item in lengths.items().filter(|item| item.mode == Mode::Counted) {
            self.add(item.key, lengths.command, held_ms);
        }
    }

    /// Adds the records of ended requests.
    pub fn add_batch(&mut self, batch: &Batch) {
        batch.lengths().for_each(|lengths| self.add_lengths(&lengths));
    }

    /// Adds a hold of a key by a command.
    pub(super) fn add(&mut self, key: &str, command: &str, held_ms: u64) {
        self.added += 1;
        if !self.keys.contains_key(key) {
            if self.keys.len() >= KEYS_MAX {
                let oldest = self.keys.iter().min_by_key(|(_, of)| of.last);
                if let Some(oldest) = oldest.map(|(key, _)| Arc::clone(key)) {
                    self.keys.remove(&oldest);
                }
            }
            self.keys.insert(Arc::from(key), Arc::default());
        }
        if let Some(of) = self.keys.get_mut(key) {
            Arc::make_mut(of).add(command, held_ms, self.added);
        }
    }

    /// How long a command usually holds a key. If too little is known about the command, how long
    /// all commands usually hold it; `None` if too little is known about those too.
    pub fn usual(&self, key: &str, command: &str) -> Option<Sample> {
        let of = self.keys.get(key)?;
        let own = of.commands.get(&name(command)).and_then(|(_, recent)| recent.sample());
        own.or_else(|| of.all.sample())
    }
}

impl OfKey {
    fn add(&mut self, command: &str, held_ms: u64, number: u64) {
        self.last = number;
        self.all.add(held_ms);
        let command = name(command);
        if !self.commands.contains_key(&command) && self.commands.len() >= COMMANDS_MAX {
            let oldest = self.commands.iter().min_by_key(|(_, (last, _))| *last);
            if let Some(oldest) = oldest.map(|(command, _)| *command) {
                self.commands.remove(&oldest);
            }
        }
        let (last, recent) = self.commands.entry(command).or_default();
        *last = number;
        recent.add(held_ms);
    }
}

/// A hash, because a command may be long and its text is not needed.
fn name(command: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    command.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::record::tests::record;
    use crate::store::Limits;

    fn median(summary: &Summary, key: &str, command: &str) -> Option<f64> {
        summary.usual(key, command).map(|sample| sample.median())
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
        summary.add_batch(&[&unseen].into_iter().collect());
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
        let all: Vec<Record> =
            (0..3_000_u64).map(|n| Record { held_ms: Some(n), ..record(n, "k", 0) }).collect();
        store.append(&all.iter().collect(), 0).unwrap();
        let mut added = Summary::default();
        added.add_batch(&all.iter().collect());
        let read = Summary::of(&store);
        let sample = read.usual("k", &all[0].command);
        assert!(sample.is_some());
        assert_eq!(sample, added.usual("k", &all[0].command), "the latest ones, in their order");
    }
}
