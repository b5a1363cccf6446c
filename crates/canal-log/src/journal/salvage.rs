//! Reads the intact part of an unusable journal, to find out which commands its loss affects.

use std::path::Path;

use super::file::JournalFile;
use super::header::{Header, LIVE};
use super::record::{self, Content, Framed};
use crate::Record;
use canal_core::Snapshot;
use canal_sys::process::Origin;

/// The part of a journal before its damage.
#[derive(Debug)]
pub struct Salvaged {
    /// The writer.
    pub origin: Origin,
    /// The table at the beginning of the file.
    pub snapshot: Snapshot,
    /// The records after it, up to the damage.
    pub records: Vec<Record>,
}

/// Reads as much as possible of the journal in `dir`, and changes nothing.
#[must_use]
pub fn salvage(dir: &Path) -> Option<Salvaged> {
    let found = [0, 1].into_iter().filter_map(|index| {
        let file = JournalFile::open(dir, index).ok()??;
        let bytes = file.read().ok().filter(|bytes| bytes.starts_with(&LIVE))?;
        let (header, start) = Header::decode(&bytes).ok()?;
        Some((header, start, bytes))
    });
    let (header, start, bytes) = found.max_by_key(|(header, ..)| header.generation)?;
    let Framed::Whole { payload, next } = record::read(whole(&bytes), start) else { return None };
    let snapshot = serde_json::from_slice(payload).ok()?;
    Some(Salvaged { origin: header.origin, snapshot, records: records(&bytes, next) })
}

fn whole(bytes: &[u8]) -> Content<'_> {
    Content { bytes, len: bytes.len() }
}

fn records(bytes: &[u8], mut at: usize) -> Vec<Record> {
    let mut records = Vec::new();
    while let Framed::Whole { payload, next } = record::read(whole(bytes), at) {
        let Ok(record) = serde_json::from_slice(payload) else { break };
        records.push(record);
        at = next;
    }
    records
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{Journal, OpenError, file};
    use super::*;
    use canal_core::{Change, ENTRY_VERSION, Entry, Revision, Table, Token, UnixMillis};

    fn floor(revision: u64) -> Record {
        let change = Change::Floor { token: Token(revision) };
        let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
        Record { revision: Revision(revision), entry, outcomes: Vec::new() }
    }

    #[test]
    fn records_before_the_damage_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let origin = Origin { boot_id: "b".into(), pid_namespace: 1, time_namespace: 1 };
        let mut journal = Journal::open(dir.path()).unwrap().journal;
        let snapshot = Table::default().snapshot();
        journal.compact(&snapshot, &origin, 1, 0).unwrap();
        journal.append_all(&[floor(1), floor(2)]).unwrap();
        let sound = journal.appended();
        journal.append_all(&[floor(3)]).unwrap();
        let begin = journal.live.as_ref().unwrap().begin;
        drop(journal);

        let path = file::path(dir.path(), 0);
        let mut bytes = fs::read(&path).unwrap();
        bytes[usize::try_from(begin + sound).unwrap() + 20] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(matches!(Journal::open(dir.path()), Err(OpenError::Damaged { .. })));

        let salvaged = salvage(dir.path()).unwrap();
        assert_eq!(salvaged.origin, origin);
        assert_eq!(salvaged.snapshot, snapshot);
        assert_eq!(salvaged.records, [floor(1), floor(2)]);
    }

    #[test]
    fn nothing_is_read_where_nothing_is() {
        let dir = tempfile::tempdir().unwrap();
        assert!(salvage(dir.path()).is_none());
        fs::write(file::path(dir.path(), 0), b"garbage").unwrap();
        assert!(salvage(dir.path()).is_none());
    }
}
