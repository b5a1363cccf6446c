//! The embedded journal: two files, allocated ahead, that alternate for compaction.

use std::io;
use std::path::{Path, PathBuf};

use super::Record;
use crate::core::Snapshot;
use crate::sys::process::Origin;

/// The journal of one daemon, open for appending.
#[derive(Debug)]
pub struct Journal {}

/// What was found when a journal was opened.
#[derive(Debug)]
pub struct Opened {
    /// Open for appending.
    pub journal: Journal,
    /// Who wrote what was found; `None` for a new journal.
    pub origin: Option<Origin>,
    /// The version of the rules ([`crate::core::Rules`]) under which it was decided.
    pub rules: u32,
    /// The table at the beginning of the current file; `None` for a new journal.
    pub snapshot: Option<Snapshot>,
    /// The records after the snapshot, in order.
    pub records: Vec<Record>,
    /// The bytes of a torn last record that were cut off, 0 if none.
    pub torn_bytes: u64,
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not what this program writes: file, offset and what is wrong there.
    #[error("{path} is damaged at byte {offset}: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A later version of canal wrote it.
    #[error("{path} was written by a newer canal (format {found}, this one knows {known})")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The system said no.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// There is no room for a newcomer.
#[derive(Debug, thiserror::Error)]
#[error("no room for the journal in {dir}: {error}")]
pub struct NoRoom {
    /// The directory.
    pub dir: PathBuf,
    /// What the system said.
    pub error: io::Error,
}

impl Journal {
    /// Opens the journal in `dir`, or makes a new one. Nothing of what is found is changed, but
    /// for a torn tail, which is cut.
    pub fn open(dir: &Path) -> Result<Opened, OpenError> {
        let _ = dir;
        todo!()
    }

    /// Moves the journal's files aside (`journal.N.discarded-UNIXSECONDS`); returns their names.
    pub fn discard(dir: &Path) -> io::Result<Vec<PathBuf>> {
        let _ = dir;
        todo!()
    }

    /// Makes sure that `bytes` for records now and `reserve` for records later (the ends of all
    /// that is held or waits) fit, allocating more of the file if need be. Called before a
    /// newcomer is accepted; records that end something never need to ask.
    pub fn admit(&mut self, bytes: u64, reserve: u64) -> Result<(), NoRoom> {
        let _ = (bytes, reserve);
        todo!()
    }

    /// Appends records in one write. They are as durable as the page cache: they survive the
    /// daemon, not the machine.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let _ = records;
        todo!()
    }

    /// Whether so much was appended since the snapshot that it is worth to compact.
    #[must_use]
    pub fn wants_compaction(&self) -> bool {
        todo!()
    }

    /// Goes on in the other file, which begins with `snapshot`, and keeps room for `reserve`
    /// bytes. If that fails, the current file stays in use and nothing is lost.
    pub fn compact(
        &mut self,
        snapshot: &Snapshot,
        origin: &Origin,
        rules: u32,
        reserve: u64,
    ) -> io::Result<()> {
        let _ = (snapshot, origin, rules, reserve);
        todo!()
    }

    /// Whether the current file is no longer in its directory (somebody cleaned up): the daemon
    /// then makes the directory anew and calls [`Journal::recreate`].
    #[must_use]
    pub fn vanished(&self) -> bool {
        todo!()
    }

    /// Makes the files anew in `dir` from memory.
    pub fn recreate(
        &mut self,
        dir: &Path,
        snapshot: &Snapshot,
        origin: &Origin,
        rules: u32,
        reserve: u64,
    ) -> io::Result<()> {
        let _ = (dir, snapshot, origin, rules, reserve);
        todo!()
    }
}
