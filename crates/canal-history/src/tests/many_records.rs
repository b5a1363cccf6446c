//! Measures many records: `CANAL_RECORDS=10000000 CANAL_RECORDS_DIR=DIR cargo test -p canal-history
//! many_records -- --nocapture` writes that number of records into `DIR/history`, where a daemon
//! can read them, and prints how long it takes to write, open, search and count the files. Without
//! the variables, it writes and finds some thousands of records.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::record::{Ending, Item, Record};
use crate::{Limits, Present, Query, Search, Store, Tally};
use canal_core::{Mode, SlotRange};
use canal_protocol::HistoryRecord;

/// The number of keys of the records.
const KEYS: u64 = 100;

/// The time from the end of one record to the end of the next, in milliseconds.
const EVERY_MS: u64 = 200;

fn record(n: u64, now_ms: u64, count: u64) -> Record<'static> {
    let slots = vec![SlotRange(n % 3, n % 3)].into();
    let key = format!("build/{}", n % KEYS).into();
    Record {
        ended_ms: now_ms.saturating_sub((count - n) * EVERY_MS),
        waited_ms: n % 977,
        held_ms: Some(100 + n % 4_999),
        token: (1 << 50) + n,
        items: vec![Item { key, mode: Mode::Counted, count: 1, size: 3, slots }],
        session: n,
        uid: 1000,
        pid: 4_000 + u32::try_from(n % 60_000).unwrap(),
        command: format!("make -j{} all", n % 8).into(),
        note: None,
        host: None,
        at_least: false,
        ending: Ending::Exited(u8::from(n.is_multiple_of(50))),
    }
}

/// Writes records that end now, in batches like a daemon's.
fn write(dir: &Path, count: u64, limits: Limits) {
    let (mut store, _) = Store::open(dir, limits).unwrap();
    let now_ms = u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let all: Vec<u64> = (0..count).collect();
    for batch in all.chunks(4_096) {
        let records: Vec<Record<'static>> =
            batch.iter().map(|n| record(*n, now_ms, count)).collect();
        store.append(&records.iter().collect(), now_ms).unwrap();
    }
}

fn session(record: &HistoryRecord) -> u64 {
    record.session.as_ref().unwrap().strip_prefix('s').unwrap().parse().unwrap()
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    println!("{what}: {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    result
}

#[test]
fn many_records_are_found_and_counted_by_their_key() {
    let named = std::env::var("CANAL_RECORDS").ok().map(|count| count.parse().unwrap());
    let count: u64 = named.unwrap_or(5_000);
    let own = tempfile::tempdir().unwrap();
    let named = std::env::var_os("CANAL_RECORDS_DIR").map(PathBuf::from);
    let dir = named.unwrap_or_else(|| own.path().to_owned()).join("history");
    let limits = Limits { keep_ms: u64::MAX, max_bytes: u64::MAX };
    timed(&format!("{count} records written"), || write(&dir, count, limits));
    let (store, aside) = timed("files opened", || Store::open(&dir, limits).unwrap());
    assert_eq!(aside, None);
    println!("{} bytes", store.bytes());
    let query = |limit| Query { key: Some("build/7".to_owned()), limit, ..Query::default() };
    let mut search = Search::new(query(50));
    timed("the last 50 of a key", || while !search.step(&store) {});
    let found: Vec<u64> = search.found.records.iter().map(|it| session(it) % KEYS).collect();
    assert_eq!(found, vec![7; usize::try_from((count / KEYS).min(50)).unwrap()]);
    let mut tally = Tally::new(query(0), None, Present::default());
    timed("one key counted", || while !tally.step(&store) {});
    assert_eq!(tally.report(|_| None).all.count, count / KEYS);
}
