//! Recovery: reads the two files without changing them.
//!
//! It finds exactly the records that were appended, less a torn tail that was not reported to any
//! client, or it returns an error. It never takes an inexplicable file for an old or an empty one.
//! From an unusable journal, it reads the intact part; it can also set one aside.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io, iter};

use serde_json::Value;

use super::file::{JournalFile, PAGE, path, path_new};
use super::format::{self, Content, Framed, Header, LIVE, Mark, RETIRED};
use super::{Journal, Live, OpenError, Opened};
use crate::{Record, disk};
use canal_core::{ENTRY_VERSION, Revision, Snapshot};
use canal_sys::private_dir::if_there;
use canal_sys::process::Origin;

/// The state of a file, from its beginning.
enum FileState {
    /// It does not exist.
    Missing,
    /// It was allocated and never used.
    Unused,
    /// It is empty, which a file of canal never is.
    Empty,
    /// It is out of use.
    Retired,
    /// It is in use.
    Live(Header),
}

/// The content of the file in use.
struct Body {
    snapshot: Snapshot,
    records: Vec<Record>,
    /// Where the records begin and end, and the bytes of a torn one after them.
    begin: usize,
    end: usize,
    torn: usize,
    /// Why the records end there, unless they were read to their end.
    fault: Option<OpenError>,
}

/// Opens or creates the journal in `dir` with files of `size` bytes.
pub(super) fn open(dir: &Path, size: u64) -> Result<Opened, OpenError> {
    use FileState::{Live, Missing, Retired, Unused};
    match [look(dir, 0)?, look(dir, 1)?] {
        [(Some(a), Live(of_a)), (Some(b), Live(of_b))] => {
            match of_a.generation.cmp(&of_b.generation) {
                Ordering::Greater => recover(dir, size, a, of_a, Some(b)),
                Ordering::Less => recover(dir, size, b, of_b, Some(a)),
                Ordering::Equal => {
                    let what = "both files have the same generation";
                    Err(OpenError::damaged(&a.path, 0, what))
                }
            }
        }
        [(Some(file), Live(header)), (other, _)] | [(other, _), (Some(file), Live(header))] => {
            recover(dir, size, file, header, other)
        }
        [(_, Missing), (_, Missing)] => {
            // Both, so that a disk without room for them is an error now.
            let first = create_empty(dir, 0, size)?;
            let second = create_empty(dir, 1, size).inspect_err(|_| {
                let _ = disk::remove(&first.path);
            })?;
            Ok(new(dir, size, first, second))
        }
        // A daemon was killed before it had put the first file into use for the first time: the
        // second file is marked before the first one is ever taken out of use.
        [(Some(a), Unused), (_, Missing)] => Ok(new(dir, size, a, create_empty(dir, 1, size)?)),
        [(Some(a), Unused | Retired), (Some(b), Unused)] => Ok(new(dir, size, a, b)),
        // There are files, but none of them is in use.
        [(_, a), (_, b)] => {
            let (index, what) = match [a, b] {
                [FileState::Empty, _] => (0, "it is empty"),
                [_, FileState::Empty] => (1, "it is empty"),
                [Missing, _] => (0, "it is missing"),
                [_, Missing] => (1, "it is missing"),
                _ => (0, "neither this file nor the other one is in use"),
            };
            Err(OpenError::damaged(&path(dir, index), 0, what))
        }
    }
}

/// The last writer, if a header can still be read. After another boot, the records are void, and
/// may well be damaged: they are not synced, so a power cut leaves holes.
pub fn last_origin(dir: &Path) -> Option<Origin> {
    latest(dir, |file| file.head().ok()).map(|(header, _)| header.origin)
}

/// The header of the file in use, or else of the latest one, and the bytes that `read` got from it.
fn latest(dir: &Path, read: impl Fn(&JournalFile) -> Option<Vec<u8>>) -> Option<(Header, Vec<u8>)> {
    let found = [0, 1].into_iter().filter_map(|index| {
        let file = JournalFile::open(dir, index).ok()??;
        let bytes = read(&file)?;
        let (header, _) = Header::decode(&file.path, &bytes).ok()?;
        Some((header, bytes))
    });
    found.max_by_key(|(header, bytes)| (bytes.starts_with(&LIVE), header.generation))
}

fn look(dir: &Path, index: usize) -> Result<(Option<JournalFile>, FileState), OpenError> {
    let name = path(dir, index);
    let failed = |error| OpenError::io(&name, error);
    let Some(mut file) = JournalFile::open(dir, index).map_err(failed)? else {
        return Ok((None, FileState::Missing));
    };
    let head = file.head().map_err(failed)?;
    let mark = head.first_chunk::<{ size_of::<Mark>() }>().copied();
    let state = match mark {
        _ if head.is_empty() => FileState::Empty,
        Some(LIVE) => FileState::Live(Header::decode(&name, &head)?.0),
        Some(RETIRED) => {
            file.found(file.len());
            FileState::Retired
        }
        _ => {
            if !file.read().map_err(failed)?.is_empty() {
                return Err(OpenError::damaged(&name, 0, "it does not begin like a journal"));
            }
            file.found(0);
            FileState::Unused
        }
    };
    Ok((Some(file), state))
}

fn create_empty(dir: &Path, index: usize, size: u64) -> Result<JournalFile, OpenError> {
    JournalFile::create(dir, index, size, &[])
        .map_err(|error| OpenError::io(&path(dir, index), error))
}

fn new(dir: &Path, size: u64, first: JournalFile, second: JournalFile) -> Opened {
    let journal = Journal::new(dir, size, None, [Some(first), Some(second)]);
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
        return Err(OpenError::damaged(&name, file.len() as usize, "the file was cut short"));
    }
    let bytes = file.read().map_err(failed)?;
    let content = Content { bytes: &bytes, len: file.len() as usize };
    let body = read(&name, content)?;
    drop(bytes);
    if let Some(fault) = body.fault {
        return Err(fault);
    }
    // The remains of a file whose creation a kill interrupted.
    for index in 0..2 {
        let _ = disk::remove(&path_new(dir, index));
    }
    file.found((body.end + body.torn) as u64);
    file.cut(body.end as u64).map_err(failed)?;
    // A compaction was killed after it had put one file into use and before it took the other out.
    // If that fails now, the next compaction repeats it.
    if let Some(other) = &mut other {
        let _ = other.mark(RETIRED);
    }
    let mut spares = [None, None];
    spares[1 - file.index] = other;
    let live = Live {
        file,
        revision: body.records.last().map_or(body.snapshot.globals.revision, |last| last.revision),
        header: header.clone(),
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

/// Reads the snapshot, and the records up to their end or to damage.
fn read(name: &Path, file: Content<'_>) -> Result<Body, OpenError> {
    let (_, start) = Header::decode(name, file.bytes)?;
    let broken = |(offset, what): (usize, String)| OpenError::damaged(name, offset, what);
    let (payload, begin) =
        format::read(file, start).whole(start, "the snapshot is cut short").map_err(broken)?;
    let snapshot: Snapshot = serde_json::from_slice(payload)
        .map_err(|error| broken((start, format!("the snapshot: {error}"))))?;
    let (mut records, mut end, mut torn) = (Vec::new(), begin, 0);
    let mut next_revision = snapshot.globals.revision.0 + 1;
    let fault = loop {
        match format::read(file, end) {
            Framed::Whole { payload, next } => match parse(name, end, payload) {
                Ok(record) if record.revision == Revision(next_revision) => {
                    records.push(record);
                    end = next;
                    next_revision += 1;
                }
                Ok(Record { revision, .. }) => {
                    let what = format!("found revision {revision} instead of {next_revision}");
                    break Some(broken((end, what)));
                }
                Err(error) => break Some(error),
            },
            Framed::Torn(bytes) => {
                torn = bytes;
                break None;
            }
            Framed::End => break None,
            Framed::Bad { offset, what } => break Some(broken((offset, what))),
        }
    };
    Ok(Body { snapshot, records, begin, end, torn, fault })
}

fn parse(name: &Path, at: usize, payload: &[u8]) -> Result<Record, OpenError> {
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
                _ => Err(OpenError::damaged(name, at, format!("a record: {error}"))),
            }
        }
    }
}

/// Reads as much as possible of the journal in `dir`, and changes nothing: its writer, the table at
/// the beginning of the file, and the records after it, up to damage.
pub fn salvage(dir: &Path) -> Option<(Origin, Snapshot, Vec<Record>)> {
    let (header, bytes) =
        latest(dir, |file| file.read().ok().filter(|bytes| bytes.starts_with(&LIVE)))?;
    let body = read(dir, Content::from(&bytes)).ok()?;
    Some((header.origin, body.snapshot, body.records))
}

impl Journal {
    /// Renames the journal's files (`journal.N.discarded-UNIXSECONDS`); returns their names.
    ///
    /// # Errors
    /// Stops at the first file that could not be renamed; the caller can try again.
    pub fn discard(dir: &Path) -> io::Result<Vec<PathBuf>> {
        // The file in use comes last: until then the journal is unchanged.
        let mut indices = [0, 1];
        indices.sort_by_key(|index| {
            let head = JournalFile::open(dir, *index).ok().flatten().map(|file| file.head());
            matches!(head, Some(Ok(head)) if head.starts_with(&LIVE))
        });
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut names = Vec::new();
        for index in indices {
            let from = path(dir, index);
            let to = free_name(&from, now.as_secs());
            names.extend(if_there(fs::rename(&from, &to))?.map(|()| to));
        }
        Ok(names)
    }
}

/// An unused name derived from `from`.
fn free_name(from: &Path, seconds: u64) -> PathBuf {
    let suffixes = iter::once(String::new()).chain((1_u32..).map(|n| format!("-{n}")));
    let mut names = suffixes.map(|suffix| {
        let mut name = from.as_os_str().to_owned();
        name.push(format!(".discarded-{seconds}{suffix}"));
        PathBuf::from(name)
    });
    names.find(|name| fs::symlink_metadata(name).is_err()).unwrap_or_default()
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
        assert_eq!(salvaged, (origin, snapshot, vec![floor(1), floor(2)]));
    }

    #[test]
    fn nothing_is_read_where_nothing_is() {
        let dir = tempfile::tempdir().unwrap();
        assert!(salvage(dir.path()).is_none());
        fs::write(path(dir.path(), 0), b"garbage").unwrap();
        assert!(salvage(dir.path()).is_none());
    }
}
