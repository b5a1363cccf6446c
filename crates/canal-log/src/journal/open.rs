//! Recovery: reads the two files without changing them.
//!
//! It finds exactly the records that were appended, less a torn tail that was not reported to any
//! client, or it returns an error. It never takes an inexplicable file for an old or an empty one.
//! From an unusable journal, it reads the intact part.

use std::cmp::Ordering;
use std::path::Path;

use serde_json::Value;

use super::file::{JournalFile, PAGE, path, path_new};
use super::format::{self, Content, Framed, Header, LIVE, Mark, RETIRED};
use super::{Journal, Live, OpenError, Opened, disk};
use crate::Record;
use canal_core::{ENTRY_VERSION, Revision, Snapshot};
use canal_sys::process::Origin;

/// The state of a file, from its beginning.
enum FileState {
    /// It does not exist.
    Missing,
    /// It was allocated and never used.
    Unused(JournalFile),
    /// It is empty, which a file of canal never is.
    Empty(JournalFile),
    /// It is out of use.
    Retired(JournalFile),
    /// It is in use.
    Live(JournalFile, Header),
}

/// The content of the file in use.
struct Body {
    snapshot: Snapshot,
    records: Vec<Record>,
    /// Where the snapshot begins and ends, where the records end, and the position of the last
    /// byte.
    start: usize,
    begin: usize,
    end: usize,
    torn: usize,
}

/// Opens or creates the journal in `dir` with files of `size` bytes.
pub(super) fn open(dir: &Path, size: u64) -> Result<Opened, OpenError> {
    open_found(dir, size).map_err(|error| match error {
        OpenError::Damaged { path, offset, what, origin: None } => {
            OpenError::Damaged { path, offset, what, origin: last_origin(dir) }
        }
        other => other,
    })
}

fn open_found(dir: &Path, size: u64) -> Result<Opened, OpenError> {
    match [look(dir, 0)?, look(dir, 1)?] {
        [FileState::Live(a, of_a), FileState::Live(b, of_b)] => {
            match of_a.generation.cmp(&of_b.generation) {
                Ordering::Greater => recover(dir, size, a, of_a, Some(b)),
                Ordering::Less => recover(dir, size, b, of_b, Some(a)),
                Ordering::Equal => {
                    let what = "both files have the same generation";
                    Err(OpenError::damaged(&a.path, 0, what, Some(&of_a.origin)))
                }
            }
        }
        [FileState::Live(file, header), other] | [other, FileState::Live(file, header)] => {
            let other = match other {
                FileState::Missing => None,
                FileState::Unused(file) | FileState::Empty(file) | FileState::Retired(file) => {
                    Some(file)
                }
                FileState::Live(file, _) => Some(file),
            };
            recover(dir, size, file, header, other)
        }
        [FileState::Missing, FileState::Missing] => {
            // Both, so that a disk without room for them is an error now.
            let first = create_empty(dir, 0, size)?;
            let second = create_empty(dir, 1, size).inspect_err(|_| {
                let _ = disk::remove(&first.path);
            })?;
            Ok(new(dir, size, [first, second]))
        }
        // A daemon was killed before it had put the first file into use for the first time: the
        // second file is marked before the first one is ever taken out of use.
        [FileState::Unused(a), FileState::Missing] => {
            Ok(new(dir, size, [a, create_empty(dir, 1, size)?]))
        }
        [FileState::Unused(a) | FileState::Retired(a), FileState::Unused(b)] => {
            Ok(new(dir, size, [a, b]))
        }
        found => Err(not_in_use(dir, &found)),
    }
}

/// The last writer, if a header can still be read.
pub fn last_origin(dir: &Path) -> Option<Origin> {
    let (header, ..) = latest(dir, |file| file.head().ok())?;
    Some(header.origin)
}

/// The header of the latest file, its end, and the bytes that `read` got from the file.
fn latest(
    dir: &Path,
    read: impl Fn(&JournalFile) -> Option<Vec<u8>>,
) -> Option<(Header, usize, Vec<u8>)> {
    let found = [0, 1].into_iter().filter_map(|index| {
        let file = JournalFile::open(dir, index).ok()??;
        let bytes = read(&file)?;
        let (header, end) = Header::decode(&file.path, &bytes).ok()?;
        Some((header, end, bytes))
    });
    found.max_by_key(|(header, ..)| header.generation)
}

fn look(dir: &Path, index: usize) -> Result<FileState, OpenError> {
    let name = path(dir, index);
    let failed = |error| OpenError::io(&name, error);
    let Some(mut file) = JournalFile::open(dir, index).map_err(failed)? else {
        return Ok(FileState::Missing);
    };
    let head = file.head().map_err(failed)?;
    let mark = head.first_chunk::<{ size_of::<Mark>() }>().copied();
    match mark {
        _ if head.is_empty() => Ok(FileState::Empty(file)),
        Some(LIVE) => {
            let (header, _) = Header::decode(&name, &head)?;
            Ok(FileState::Live(file, header))
        }
        Some(RETIRED) => {
            file.found(file.len());
            Ok(FileState::Retired(file))
        }
        _ => {
            let all = file.read().map_err(failed)?;
            if !all.is_empty() {
                return Err(OpenError::damaged(&name, 0, "it does not begin like a journal", None));
            }
            file.found(0);
            Ok(FileState::Unused(file))
        }
    }
}

fn create_empty(dir: &Path, index: usize, size: u64) -> Result<JournalFile, OpenError> {
    JournalFile::create(dir, index, size, &[])
        .map_err(|error| OpenError::io(&path(dir, index), error))
}

fn new(dir: &Path, size: u64, files: [JournalFile; 2]) -> Opened {
    let journal = Journal::new(dir, size, None, files.map(Some));
    Opened { journal, origin: None, rules: 0, snapshot: None, records: Vec::new(), torn_bytes: 0 }
}

/// Reads the file in use; the other one is out of use, or about to be.
fn recover(
    dir: &Path,
    size: u64,
    mut file: JournalFile,
    header: Header,
    mut other: Option<JournalFile>,
) -> Result<Opened, OpenError> {
    let name = file.path.clone();
    let failed = |error| OpenError::io(&name, error);
    // Files are created complete and never become shorter: a cut at the end of a record would look
    // sound.
    if file.len() < size || !file.len().is_multiple_of(PAGE) {
        let (len, what) = (file.len() as usize, "the file was cut short");
        return Err(OpenError::damaged(&name, len, what, Some(&header.origin)));
    }
    let bytes = file.read().map_err(failed)?;
    let content = Content { bytes: &bytes, len: file.len() as usize };
    let body = read(&name, content, &header)?;
    drop(bytes);
    // The remains of a file whose creation a kill interrupted.
    for index in 0..2 {
        let _ = disk::remove(&path_new(dir, index));
    }
    file.found((body.end + body.torn) as u64);
    file.cut(body.end as u64).map_err(failed)?;
    // A compaction was killed after it had put one file into use and before it took the other out.
    // If that fails now, the next compaction repeats it.
    if let Some(other) = &mut other {
        let _ = other.retire();
    }
    let mut spares = [None, None];
    spares[1 - file.index] = other;
    let live = Live {
        file,
        revision: body.records.last().map_or(body.snapshot.revision, |last| last.revision),
        header: header.clone(),
        snapshot_bytes: (body.begin - body.start) as u64,
        begin: body.begin as u64,
        end: body.end as u64,
    };
    Ok(Opened {
        journal: Journal::new(dir, size, Some(live), spares),
        origin: Some(header.origin),
        rules: header.rules,
        snapshot: Some(body.snapshot),
        records: body.records,
        torn_bytes: body.torn as u64,
    })
}

fn read(name: &Path, file: Content<'_>, header: &Header) -> Result<Body, OpenError> {
    let (_, start) = Header::decode(name, file.bytes)?;
    let broken = |(offset, what): (usize, String)| {
        OpenError::damaged(name, offset, what, Some(&header.origin))
    };
    let (payload, begin) =
        format::read(file, start).whole(start, "the snapshot is cut short").map_err(broken)?;
    let snapshot: Snapshot = serde_json::from_slice(payload)
        .map_err(|error| broken((start, format!("the snapshot: {error}"))))?;
    let mut body = Body { snapshot, records: Vec::new(), start, begin, end: begin, torn: 0 };
    let mut next_revision = body.snapshot.revision.0 + 1;
    loop {
        match format::read(file, body.end) {
            Framed::Whole { payload, next } => {
                let record = parse(name, body.end, payload, header)?;
                if record.revision != Revision(next_revision) {
                    let found = record.revision;
                    let what = format!("found revision {found} instead of {next_revision}");
                    return Err(broken((body.end, what)));
                }
                body.records.push(record);
                body.end = next;
                next_revision += 1;
            }
            Framed::Torn { bytes } => {
                body.torn = bytes;
                return Ok(body);
            }
            Framed::End => return Ok(body),
            Framed::Bad { offset, what } => return Err(broken((offset, what))),
        }
    }
}

fn parse(name: &Path, at: usize, payload: &[u8], header: &Header) -> Result<Record, OpenError> {
    match serde_json::from_slice::<Record>(payload) {
        Ok(record) if record.entry.version <= ENTRY_VERSION => Ok(record),
        Ok(record) => {
            Err(OpenError::newer(name, record.entry.version.into(), ENTRY_VERSION.into()))
        }
        // It may not look like a record because a later version wrote it: every version has this
        // field.
        Err(error) => {
            match serde_json::from_slice(payload).map(|it: Value| it["e"]["v"].as_u64()) {
                Ok(Some(found)) if found > ENTRY_VERSION.into() && found <= u16::MAX.into() => {
                    Err(OpenError::newer(name, found as u32, ENTRY_VERSION.into()))
                }
                _ => {
                    let what = format!("a record: {error}");
                    Err(OpenError::damaged(name, at, what, Some(&header.origin)))
                }
            }
        }
    }
}

/// There are files, but none of them is in use.
fn not_in_use(dir: &Path, found: &[FileState; 2]) -> OpenError {
    let (index, what) = match found {
        [FileState::Empty(_), _] => (0, "it is empty"),
        [_, FileState::Empty(_)] => (1, "it is empty"),
        [FileState::Missing, _] => (0, "it is missing"),
        [_, FileState::Missing] => (1, "it is missing"),
        _ => (0, "neither this file nor the other one is in use"),
    };
    OpenError::damaged(&path(dir, index), 0, what, None)
}

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
    let (header, start, bytes) =
        latest(dir, |file| file.read().ok().filter(|bytes| bytes.starts_with(&LIVE)))?;
    let (payload, mut at) = format::read(&bytes, start).whole(start, "").ok()?;
    let snapshot = serde_json::from_slice(payload).ok()?;
    let mut records = Vec::new();
    while let Framed::Whole { payload, next } = format::read(&bytes, at)
        && let Ok(record) = serde_json::from_slice(payload)
    {
        records.push(record);
        at = next;
    }
    Some(Salvaged { origin: header.origin, snapshot, records })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use canal_core::{Change, Entry, Table, Token, UnixMillis};

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

        let path = path(dir.path(), 0);
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
        fs::write(path(dir.path(), 0), b"garbage").unwrap();
        assert!(salvage(dir.path()).is_none());
    }
}
