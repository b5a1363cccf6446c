//! The embedded journal: two preallocated files that alternate for compaction.
//!
//! Invariant: at every moment, even within a write, the two files contain everything that was
//! appended, except at most the records of an append that has not returned. `docs/journal.md`
//! describes the format byte by byte, and the reasons for the order of the writes.

mod compact;
mod file;
pub(crate) mod format;
mod open;
mod room_for_request;

use std::io;
use std::path::{Path, PathBuf};

use self::file::{FILE_BYTES, JournalFile};
use self::format::Header;
use super::Record;
use canal_core::{Entry, Outcome, Revision, Snapshot};
use canal_sys::process::Origin;

pub use file::path as file_path;
pub use format::OpenError;
pub use open::{last_origin, salvage};
pub use room_for_request::room_for;

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

    /// The number of bytes appended since the snapshot.
    pub fn appended(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.end - live.begin)
    }

    /// The number of bytes in use: those of the snapshot and of the records after it.
    pub fn bytes(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.end)
    }
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
        let record = Record { revision, entry, outcomes };
        if let Err(error) = format::encode(&mut self.bytes, &record) {
            self.failed = Some(error);
        }
        self.ends.push((revision, self.bytes.len()));
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it is empty.
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

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests;
