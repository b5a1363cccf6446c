//! A file with the open requests: those that waited or held locks when the daemon last wrote it. It
//! is their only trace after a machine goes down, because the journal may be in memory.
//!
//! Invariant: the file is replaced as a whole, so that a daemon that is killed leaves the previous
//! one.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use postcard::take_from_bytes;

use super::file_format::{self, Batch, Frames};
use super::record::Record;
use super::store::{Store, open_plain};
use canal_sys::private_dir::remove_if_there;

/// The name of the file. Files of records have numbers as names, so it differs from them all.
const NAME: &str = "open";

/// The name of the file while it is written.
const NEW: &str = "open.new";

/// The time and the name of the boot follow, then the records in the form of a file of records.
const MAGIC: &[u8; 16] = b"canal open 2   \n";

/// The requests that were open at one time.
#[derive(Debug, Default)]
pub struct Checkpoint {
    /// The boot during which they were open.
    pub boot_id: String,
    /// The last time at which they are known to have been open.
    pub known_ms: u64,
    /// Their records, as if each request had ended at that time and no daemon had seen it.
    pub records: Batch,
}

impl Checkpoint {
    /// Replaces the file. Without requests, removes it.
    ///
    /// # Errors
    /// It cannot be written. The previous file stays.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        if self.records.is_empty() {
            return remove_if_there(&dir.join(NAME)).map(drop);
        }
        let head = (self.known_ms, &self.boot_id);
        let mut out = postcard::to_extend(&head, Vec::from(MAGIC)).map_err(io::Error::other)?;
        out.extend(file_format::MAGIC);
        out.extend(&self.records.form);
        let (new, path) = (dir.join(NEW), dir.join(NAME));
        remove_if_there(&new)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&out)?;
        // A machine that loses power must find the old content or the new.
        file.sync_data()?;
        fs::rename(new, path)
    }

    /// Reads the file; `None` if there is none, or if it cannot be read.
    pub fn read(dir: &Path) -> Option<Self> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut open_plain(&dir.join(NAME)).ok()?, &mut bytes).ok()?;
        let head = take_from_bytes(bytes.strip_prefix(MAGIC)?);
        let ((known_ms, boot_id), rest): ((u64, String), _) = head.ok()?;
        let records = Frames::of(rest)?.map_while(|frame| frame.record()).collect();
        Some(Self { boot_id, known_ms, records })
    }
}

/// The values that distinguish a request from all others.
fn identity(of: &Record<'_>) -> (u64, u64, u32, String) {
    let key = of.items.first().map(|item| item.key.to_string()).unwrap_or_default();
    (of.asked_ms(), of.session, of.pid, key)
}

/// The records that are not in the files, each once.
pub fn unrecorded(store: &Store, batch: &Batch) -> Batch {
    let since_ms = batch.read().map(|record| record.asked_ms()).min().unwrap_or(u64::MAX);
    let mut known = BTreeSet::new();
    let mut below = u64::MAX;
    while let Some((segment, bytes)) = store.read_before(&mut below) {
        let frames = Frames::of(&bytes).into_iter().flatten();
        let late = frames.filter(|frame| frame.ended_ms() >= since_ms);
        known.extend(late.filter_map(|frame| frame.record()).map(|it| identity(&it)));
        if segment.first_ms < since_ms {
            break;
        }
    }
    batch.read().filter(|record| known.insert(identity(record))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_space::Limits;
    use crate::record::{Ending, tests::record};

    /// The record of a request that had held its lock for a second at this time.
    fn open(known_ms: u64, key: &str) -> Record<'static> {
        let ending = Ending::Reboot;
        Record { held_ms: Some(1_000), ending, at_least: true, ..record(known_ms, key, 0) }
    }

    fn checkpoint(records: &[Record<'static>]) -> Checkpoint {
        let records = records.iter().cloned().collect();
        Checkpoint { boot_id: "one boot".to_owned(), known_ms: 60_000, records }
    }

    #[test]
    fn what_is_open_is_what_was_written_last() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(Checkpoint::read(dir).is_none());
        let waiter = Record { held_ms: None, token: 0, ..open(60_000, "w") };
        for records in [vec![open(60_000, "a"), waiter], vec![open(60_000, "b")]] {
            checkpoint(&records).write(dir).unwrap();
            let read = Checkpoint::read(dir).unwrap();
            assert_eq!((read.boot_id.as_str(), read.known_ms), ("one boot", 60_000));
            assert!(read.records.read().eq(records));
        }
        checkpoint(&[]).write(dir).unwrap();
        assert!(Checkpoint::read(dir).is_none());
    }

    #[test]
    fn a_damaged_file_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        checkpoint(&[open(10_000, "a"), open(20_000, "b")]).write(dir).unwrap();
        let whole = fs::read(dir.join(NAME)).unwrap();
        for end in 0..whole.len() {
            fs::write(dir.join(NAME), &whole[..end]).unwrap();
            assert!(Checkpoint::read(dir).is_none_or(|read| read.records.records() < 2), "{end}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            fs::write(dir.join(NAME), changed).unwrap();
            let _ = Checkpoint::read(dir);
        }
    }

    #[test]
    fn what_was_recorded_is_not_recorded_again() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
        let (mut store, _) = Store::open(dir.path(), limits).unwrap();
        let ended = |ms, key| Record { ending: Ending::Exited(0), ..open(ms, key) };
        store.append(&[ended(10_000, "a"), ended(30_000, "b")].iter().collect(), 0).unwrap();
        // The first request held its lock for longer than was noted before, and one request is
        // listed twice.
        let longer = Record { held_ms: Some(81_000), ..open(90_000, "a") };
        let left = [longer, open(10_000, "c"), open(10_000, "c")];
        assert!(unrecorded(&store, &left.into_iter().collect()).read().eq([open(10_000, "c")]));
        assert!(unrecorded(&store, &Batch::default()).is_empty());
    }
}
