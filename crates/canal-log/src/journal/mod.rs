//! The embedded journal: two preallocated files that alternate for compaction.
//!
//! Invariant: at every moment, even within a write, the two files contain everything that was
//! appended, except at most the records of an append that has not returned. `docs/journal.md`
//! describes the format byte by byte, and the reasons for the order of the writes.

mod compact;
pub mod disk;
mod file;
pub(crate) mod format;
mod open;
mod reserved_space;

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io, iter};

use self::file::JournalFile;
use self::format::{Header, LIVE};
use super::{Record, RecordRef};
use canal_core::{Entry, Outcome, Revision, Snapshot};
use canal_sys::process::Origin;

pub use file::path as file_path;
pub use format::OpenError;
pub use open::{last_origin, salvage};
pub use reserved_space::room_for;

/// The size of each of the two files at creation, in bytes.
const FILE_BYTES: u64 = 1 << 20;
/// Room reserved for the few records that belong to no request, such as those of a restart.
const MARGIN: u64 = 4096;

/// The journal of one daemon, open for appending.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    /// The minimum size of each file in bytes.
    size: u64,
    /// The file in use; `None` in a new journal.
    live: Option<Live>,
    /// The unused files, by number.
    spares: [Option<JournalFile>; 2],
    /// The bytes of records after the snapshot at which to compact.
    compact_after: u64,
}

/// The file in use.
#[derive(Debug)]
struct Live {
    file: JournalFile,
    header: Header,
    /// The revision of its last record.
    revision: Revision,
    /// Where the records begin, after the header and the snapshot.
    begin: u64,
    /// Where they end.
    end: u64,
}

/// The result of opening a journal.
#[derive(Debug)]
pub struct Opened {
    /// Open for appending.
    pub journal: Journal,
    /// The writer of the records; `None` for a new journal, which accepts records only after its
    /// first [`Journal::compact`].
    pub origin: Option<Origin>,
    /// The version of the rules ([`canal_core::RULES_VERSION`]) that decided the entries.
    pub rules: u32,
    /// The table at the beginning of the current file; `None` for a new journal.
    pub snapshot: Option<Snapshot>,
    /// The records after the snapshot, in order.
    pub records: Vec<Record>,
    /// The bytes of a torn last record that were cut off; 0 without one.
    pub torn_bytes: u64,
}

/// There is no room for a new request.
#[derive(Debug, thiserror::Error)]
#[error("no room for the journal in {dir}: {error}")]
pub struct NoRoom {
    /// The directory.
    pub dir: PathBuf,
    /// The system's error.
    pub error: io::Error,
}

impl Journal {
    /// Opens the journal in `dir`, or creates one. Changes nothing that it finds, except that it
    /// cuts a torn tail and finishes a compaction that a kill interrupted.
    ///
    /// # Errors
    /// Names the damaged file and the offset, and changes nothing. A disk without room for a new
    /// journal is an error too.
    pub fn open(dir: &Path) -> Result<Opened, OpenError> {
        open::open(dir, FILE_BYTES)
    }

    fn new(dir: &Path, size: u64, live: Option<Live>, spares: [Option<JournalFile>; 2]) -> Self {
        let mut journal = Self { dir: dir.to_owned(), size, live, spares, compact_after: 0 };
        journal.compact_after = journal.compaction_step();
        journal
    }

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
            let from = file::path(dir, index);
            let to = free_name(&from, now.as_secs());
            match fs::rename(&from, &to) {
                Ok(()) => names.push(to),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    /// Makes sure that `bytes` for records now and `reserve` for records later (the ends of
    /// everything held or waiting) fit, allocating more of the file if needed. Called before a new
    /// request is accepted; records that end something need no check.
    ///
    /// `reserve` is the sum of [`room_for`] over all requests that wait or hold. Entries that
    /// belong to no request (a `Resize`) need this check too.
    ///
    /// # Errors
    /// The disk is full. A compaction may make room if records were appended since the last one.
    pub fn admit(&mut self, bytes: u64, reserve: u64) -> Result<(), NoRoom> {
        let Some(live) = &mut self.live else { return Ok(()) };
        let need = [bytes, reserve, MARGIN].into_iter().fold(live.end, u64::saturating_add);
        live.file.grow(need).map_err(|error| NoRoom { dir: self.dir.clone(), error })
    }

    /// Appends records in one write. They are as durable as the page cache: they survive the
    /// daemon, but not the machine.
    ///
    /// # Errors
    /// None of the records is in the journal, and they can be appended again. Within the admitted
    /// room, this does not happen on a sound disk. Refuses records whose revisions do not follow
    /// the last one.
    pub fn append(&mut self, records: &Batch) -> io::Result<()> {
        let Some(live) = &mut self.live else {
            return Err(invalid("began a new journal with a snapshot"));
        };
        let (bytes, revision) = records.after(live.revision)?;
        live.file.append(live.end, bytes)?;
        live.end += bytes.len() as u64;
        live.revision = revision;
        Ok(())
    }

    /// Whether enough was appended since the snapshot to make compaction worthwhile. A new journal
    /// needs it at once.
    #[must_use]
    pub fn wants_compaction(&self) -> bool {
        self.live.is_none() || self.appended() > self.compact_after
    }

    /// The number of bytes appended since the snapshot.
    #[must_use]
    pub fn appended(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.end - live.begin)
    }

    /// The number of bytes in use: those of the snapshot and of the records after it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.end)
    }

    /// The bytes to append between two compactions: at least as many as the second one writes, so
    /// that all compactions together cost at most as much as the appends.
    fn compaction_step(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.begin).max(self.size / 2)
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
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

/// Records to append in one write, in the order of insertion.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Each record's revision, and the end of its bytes.
    ends: Vec<(Revision, usize)>,
    /// Why one of them could not be encoded.
    failed: Option<io::Error>,
}

impl Batch {
    /// Adds a record. If it cannot be encoded, the batch cannot be appended.
    pub fn push(&mut self, revision: Revision, entry: &Entry, outcomes: &[Outcome]) {
        let record = RecordRef { revision, entry, outcomes };
        if let Err(error) = format::encode(&mut self.bytes, &record) {
            self.failed = Some(error);
        }
        self.ends.push((revision, self.bytes.len()));
    }

    /// The number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Keeps the first `records`.
    pub fn truncate(&mut self, records: usize) {
        self.ends.truncate(records);
        self.bytes.truncate(self.ends.last().map_or(0, |(_, end)| *end));
    }

    /// Removes all records and keeps some memory for later ones, but not that of a burst.
    pub fn clear(&mut self) {
        self.truncate(0);
        self.bytes.shrink_to(FILE_BYTES as usize);
        self.failed = None;
    }

    /// The bytes, and the revision of the last record, if these are the records after `last`.
    fn after(&self, last: Revision) -> io::Result<(&[u8], Revision)> {
        if let Some(error) = &self.failed {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        let follows = |(revision, next): (&(Revision, usize), u64)| revision.0.0 == next;
        if !self.ends.iter().zip(last.0 + 1..).all(follows) {
            return Err(invalid("the revisions of the records have a gap"));
        }
        Ok((&self.bytes, self.ends.last().map_or(last, |(revision, _)| *revision)))
    }
}

#[cfg(test)]
mod tests;
