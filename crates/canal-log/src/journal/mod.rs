//! The embedded journal: two preallocated files that alternate for compaction.
//!
//! Invariant: at every moment, even within a write, the two files contain everything that was
//! appended, except at most the records of an append that has not returned. `docs/journal.md`
//! describes the format byte by byte, and the reasons for the order of the writes.

mod batch;
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
use canal_core::{Revision, Snapshot};
use canal_sys::process::Origin;

pub use batch::Batch;
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
            return Err(batch::invalid("began a new journal with a snapshot"));
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

#[cfg(test)]
mod tests;
