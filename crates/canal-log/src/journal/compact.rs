//! Decides when to continue in the other file, and does so; recreates a file that was removed.
//!
//! Until its mark is written, the other file is unused, whatever it contains; from then on its
//! higher generation counts. A file that is created gets its name when it is complete. So the
//! journal is complete at every moment.

use std::io;

use super::file::{self, JournalFile};
use super::format::{Header, LIVE, RETIRED};
use super::room_for_request::MARGIN;
use super::{Journal, Live, format};
use crate::disk;
use canal_core::{ENTRY_VERSION, Snapshot};
use canal_sys::process::Origin;

impl Journal {
    /// Whether enough was appended since the snapshot to make compaction worthwhile. A new journal
    /// needs it at once.
    pub fn wants_compaction(&self) -> bool {
        self.live.is_none() || self.appended() > self.compact_after
    }

    /// The bytes to append between two compactions: at least as many as the second one writes, so
    /// that all compactions together cost at most as much as the appends.
    pub(super) fn compaction_step(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.begin).max(self.size / 2)
    }

    /// Continues in the other file, which begins with `snapshot`, and keeps room for `reserve`
    /// bytes. Creates that file if it is missing. If that fails, the current file stays in use and
    /// nothing is lost.
    ///
    /// # Errors
    /// Usually a full disk. [`Journal::wants_compaction`] then waits for the same number of bytes
    /// before it requests another attempt.
    pub fn compact(
        &mut self,
        snapshot: &Snapshot,
        origin: &Origin,
        rules: u32,
        reserve: u64,
    ) -> io::Result<()> {
        let generation = self.live.as_ref().map_or(0, |live| live.header.generation) + 1;
        let header = Header { generation, entries: ENTRY_VERSION, rules, origin: origin.clone() };
        let mut bytes = header.encode()?;
        format::encode(&mut bytes, snapshot)?;
        let begin = bytes.len() as u64;
        let need = begin.saturating_add(reserve).saturating_add(MARGIN);
        let revision = snapshot.globals.revision;
        let done = self
            .write_other(bytes, need)
            .map(|file| self.switch(Live { file, header, revision, begin, end: begin }));
        self.compact_after = match done {
            Ok(()) => self.compaction_step(),
            Err(_) => self.appended().saturating_add(self.compaction_step()),
        };
        done
    }

    /// Whether the current file was removed from its directory (by a cleaning job, for example).
    /// The daemon then creates the directory again and calls [`Journal::compact`].
    pub fn vanished(&self) -> bool {
        match &self.live {
            Some(live) => live.file.vanished(),
            None => self.spares.iter().flatten().any(JournalFile::vanished),
        }
    }

    /// Puts the other file into use with this beginning, a header and a snapshot, and with room for
    /// `need` bytes.
    fn write_other(&mut self, mut bytes: Vec<u8>, need: u64) -> io::Result<JournalFile> {
        let index = self.live.as_ref().map_or(0, |live| 1 - live.file.index);
        match self.spares[index].take() {
            Some(mut file) if !file.vanished() => {
                if let Err(error) = fill(&mut file, &bytes, need, self.size) {
                    self.spares[index] = Some(file);
                    return Err(error);
                }
                if let Err(error) = file.mark(LIVE) {
                    // The mark may or may not have been written. It must not stay: this file would
                    // count, and records appended to the other file would be lost.
                    match file.mark(RETIRED) {
                        Ok(()) => self.spares[index] = Some(file),
                        Err(_) => disk::remove(&file.path)?,
                    }
                    return Err(error);
                }
                Ok(file)
            }
            _ => {
                bytes[..LIVE.len()].copy_from_slice(&LIVE);
                let size = self.size.max(need.next_multiple_of(file::PAGE));
                JournalFile::create(&self.dir, index, size, &bytes)
            }
        }
    }

    /// Takes the file before out of use.
    fn switch(&mut self, new: Live) {
        let len = new.file.len();
        let origin = new.header.origin.clone();
        let Some(mut old) = self.live.replace(new) else { return };
        let retired = old.file.mark(RETIRED);
        // Remove the header of another boot: it could otherwise describe a damaged file of this
        // boot (see `last_origin`).
        if retired.is_ok() && old.header.origin != origin {
            let _ = old.file.cut(RETIRED.len() as u64);
        }
        // If these fail, the next compaction repeats them: the higher generation counts.
        let _ = old.file.shrink(len.max(self.size));
        let index = old.file.index;
        self.spares[index] = Some(old.file);
    }
}

/// Writes all of `bytes` except the mark into an unused file.
fn fill(file: &mut JournalFile, bytes: &[u8], need: u64, size: u64) -> io::Result<()> {
    file.mark(RETIRED)?;
    // Returns the space of a formerly large table to the disk.
    let enough = need.next_multiple_of(file::CHUNK).max(size);
    if file.len() / 2 > enough {
        file.shrink(enough)?;
    }
    file.grow(need)?;
    file.cut(bytes.len() as u64)?;
    file.write(RETIRED.len() as u64, &bytes[RETIRED.len()..])
}
