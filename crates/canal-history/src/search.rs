//! Finds records, the newest first, one file per step. Between two steps, the caller can write the
//! requests that ended meanwhile.

use canal_protocol::HistoryPage;

use super::file_format::{Frame, Frames};
use super::record::Record;
use super::store::Store;

/// The bytes of records at which a search ends, approximately.
const BYTES_MAX: usize = 256 * 1024;

/// The conditions of a search.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only requests for this key or one below it.
    pub key: Option<String>,
    /// Only requests that ended at this time or later, in milliseconds since 1970 UTC.
    pub since_ms: u64,
    /// Only requests of this user.
    pub uid: Option<u32>,
    /// Only requests of this session.
    pub session: Option<u64>,
    /// Only failures.
    pub failed: bool,
    /// Only records with smaller numbers than this.
    pub before: Option<u64>,
    /// The most records to find.
    pub limit: usize,
}

/// A search in progress.
#[derive(Debug)]
pub struct Search {
    query: Query,
    /// Files from this record on have been searched.
    below: u64,
    bytes: usize,
    /// The records found so far, the newest first.
    pub found: HistoryPage,
    /// A damaged file, by the number of its first record. The records after the damage are omitted.
    pub damaged: Option<u64>,
}

impl Search {
    pub fn new(query: Query) -> Self {
        let below = query.before.unwrap_or(u64::MAX);
        Self { query, below, bytes: 0, found: HistoryPage::default(), damaged: None }
    }

    /// Searches the next file. Returns whether the search is over.
    pub fn step(&mut self, store: &Store) -> bool {
        let Some((segment, bytes)) = store.read_before(&mut self.below) else { return true };
        let Some(mut frames) = Frames::of(&bytes) else {
            // It was removed to make room.
            return bytes.is_empty();
        };
        let all: Vec<_> = (segment.first..).zip(&mut frames).collect();
        if frames.at < bytes.len() {
            self.damaged = Some(segment.first);
        }
        for (number, frame) in all.into_iter().rev() {
            let is_before = self.query.before.is_none_or(|before| number < before);
            if !is_before || !self.query.may_fit(&frame) {
                continue;
            }
            let Some(record) = frame.record() else {
                self.damaged = Some(segment.first);
                continue;
            };
            if !self.query.fits(&record) {
                continue;
            }
            if self.found.records.len() >= self.query.limit || self.bytes >= BYTES_MAX {
                self.found.before = self.found.records.last().map(|record| record.number);
                return true;
            }
            self.bytes += frame.payload.len();
            self.found.records.push(record.shown(number));
        }
        // The records before this file ended before its first record did.
        segment.first_ms < self.query.since_ms
    }
}

impl Query {
    /// Whether a record may fit, by its first values.
    pub(super) fn may_fit(&self, frame: &Frame<'_>) -> bool {
        frame.head().is_none_or(|(ended_ms, items, key)| {
            ended_ms >= self.since_ms && (items != 1 || self.is_about(key))
        })
    }

    /// Whether a record fits, except for its position.
    pub(super) fn fits(&self, record: &Record<'_>) -> bool {
        record.ended_ms >= self.since_ms
            && self.uid.is_none_or(|uid| record.uid == uid)
            && self.session.is_none_or(|session| record.session == session)
            && (!self.failed || record.ending.is_failure())
            && (self.key.is_none() || record.items.iter().any(|item| self.is_about(&item.key)))
    }

    /// Whether a key is that of the query or a key below it.
    pub(super) fn is_about(&self, key: &str) -> bool {
        self.key.as_ref().is_none_or(|wanted| {
            let rest = key.strip_prefix(wanted.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_space::Limits;
    use crate::record::{Ending, tests::record};
    use canal_protocol::HistoryRecord;

    /// 3,000 records in several files: keys a, a/b and c in turns, users 0 to 4.
    fn store() -> (Store, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
        let (mut store, _) = Store::open(dir.path(), limits).unwrap();
        let all: Vec<Record<'static>> = (0..3_000_u32)
            .map(|n| {
                let key = ["a", "a/b", "c"][n as usize % 3];
                let ending = if n % 10 == 0 { Ending::Exited(1) } else { Ending::Released };
                Record { ending, ..record(u64::from(n) * 1000, key, n % 5) }
            })
            .collect();
        store.append(&all.iter().collect(), 0).unwrap();
        assert!(store.bytes() > 150_000);
        (store, dir)
    }

    fn find(store: &Store, query: Query) -> HistoryPage {
        let mut search = Search::new(query);
        while !search.step(store) {}
        search.found
    }

    /// All records that fit, page by page, the oldest first.
    fn all(store: &Store, query: &Query) -> Vec<HistoryRecord> {
        let (mut records, mut before) = (Vec::new(), None);
        loop {
            let found = find(store, Query { before, ..query.clone() });
            assert!(found.records.is_sorted_by(|one, next| one.number > next.number));
            records.extend(found.records);
            before = found.before;
            if before.is_none() {
                records.reverse();
                return records;
            }
        }
    }

    #[test]
    fn pages_have_everything_once() {
        let (store, _dir) = store();
        for limit in [1, 7, 500, 2_999, 3_000, usize::MAX] {
            if limit == 1 {
                let found = find(&store, Query { limit, ..Query::default() });
                assert_eq!((found.records.len(), found.before), (1, Some(found.records[0].number)));
                continue;
            }
            let records = all(&store, &Query { limit, ..Query::default() });
            let times: Vec<_> = records.iter().map(|record| record.ended_ms / 1000).collect();
            assert_eq!(times, (0..3_000).collect::<Vec<_>>(), "{limit}");
        }
    }

    #[test]
    fn what_does_not_fit_is_passed_over() {
        let (store, _dir) = store();
        let count = |query: Query| all(&store, &Query { limit: 100, ..query }).len();
        let key = |key: &str| Query { key: Some(key.to_owned()), ..Query::default() };
        assert_eq!(count(key("a")), 2_000);
        assert_eq!(count(key("a/b")), 1_000);
        assert_eq!(count(key("b")), 0);
        assert_eq!(count(Query { uid: Some(3), ..Query::default() }), 600);
        assert_eq!(count(Query { session: Some(12), uid: Some(3), ..Query::default() }), 600);
        assert_eq!(count(Query { session: Some(13), ..Query::default() }), 0);
        assert_eq!(count(Query { failed: true, ..Query::default() }), 300);
        assert_eq!(count(Query { since_ms: 2_900_000, ..Query::default() }), 100);
        assert_eq!(count(Query { since_ms: 2_900_000, failed: true, ..key("c") }), 4);
    }

    #[test]
    fn a_page_is_bounded_in_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 30 };
        let (mut store, _) = Store::open(dir.path(), limits).unwrap();
        let long = Record { command: "x".repeat(10_000).into(), ..record(1, "x", 0) };
        store.append(&vec![long; 100].iter().collect(), 0).unwrap();
        let found = find(&store, Query { limit: usize::MAX, ..Query::default() });
        assert!(found.records.len() < 30 && found.before.is_some());
        assert_eq!(all(&store, &Query { limit: usize::MAX, ..Query::default() }).len(), 100);
    }

    #[test]
    fn a_key_covers_those_below_it_and_not_those_that_begin_alike() {
        let below = |found: &str, key: &str| {
            Query { key: Some(key.to_owned()), ..Query::default() }.is_about(found)
        };
        assert!(below("db", "db") && below("db/x", "db") && below("db/x/y", "db/x"));
        assert!(!below("dbs", "db") && !below("d", "db") && !below("x/db", "db"));
    }

    #[test]
    fn a_record_is_found_by_each_of_its_keys() {
        let (mut store, _dir) = store();
        let two = record(3_000_000, "x", 0).items.into_iter().chain(record(0, "y/z", 0).items);
        let of_two = Record { items: two.collect(), ..record(3_000_000, "", 0) };
        store.append(&[of_two].iter().collect(), 0).unwrap();
        for (key, count) in [("x", 1), ("y", 1), ("y/z", 1), ("z", 0)] {
            let query = Query { key: Some(key.to_owned()), limit: 9, ..Query::default() };
            assert_eq!(find(&store, query).records.len(), count, "{key}");
        }
    }
}
