//! A file with the open requests: those that waited or held locks when the daemon last wrote it. It
//! is their only trace after a machine goes down, because the journal may be in memory.
//!
//! Invariant: the file is replaced as a whole, so that a daemon that is killed leaves the previous
//! one.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::file_format::{self, Batch, Frames};
use super::record::Fields;
use super::store::{Store, open_plain};
use canal_sys::dir::remove_if_there;

/// The name of the file. Files of records have numbers as names, so it differs from them all.
const NAME: &str = "open";

/// The name of the file while it is written.
const NEW: &str = "open.new";

const MAGIC: &[u8; 16] = b"canal open 1   \n";

/// The position of the last time at which the requests are known to have been open: eight bytes.
/// The name of the boot (after its length) and the records follow, in the form of a file of
/// records.
const TIME_AT: usize = MAGIC.len();

/// The requests that were open at one time.
#[derive(Debug, Default)]
pub struct Checkpoint {
    /// The boot during which they were open.
    pub boot_id: String,
    /// The last time at which they are known to have been open.
    pub known_ms: u64,
    /// Their records, as if each request had ended at that time.
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
        let boot = self.boot_id.as_bytes();
        let length = u8::try_from(boot.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut out = Vec::from(MAGIC);
        out.extend(self.known_ms.to_le_bytes());
        out.push(length);
        out.extend(boot);
        out.extend(file_format::MAGIC);
        out.extend(self.records.form());
        let (new, path) = (dir.join(NEW), dir.join(NAME));
        remove_if_there(&new)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&out)?;
        // A machine that loses power must find the old content or the new.
        file.sync_data()?;
        fs::rename(new, path)
    }

    /// Records that the requests in the file are still open at this time.
    ///
    /// # Errors
    /// Those of write(2), or there is no such file.
    pub fn confirm(dir: &Path, known_ms: u64) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).custom_flags(libc::O_NOFOLLOW).open(dir.join(NAME))?;
        file.write_all_at(&known_ms.to_le_bytes(), TIME_AT as u64)
    }

    /// Reads the file; `None` if there is none, or if it cannot be read.
    pub fn read(dir: &Path) -> Option<Self> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut open_plain(&dir.join(NAME)).ok()?, &mut bytes).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?;
        let (known, rest) = rest.split_first_chunk()?;
        let known_ms = u64::from_le_bytes(*known);
        let (length, rest) = rest.split_first()?;
        let (boot, rest) = rest.split_at_checked(usize::from(*length))?;
        let boot_id = std::str::from_utf8(boot).ok()?.to_owned();
        let records = Frames::of(rest)?.map_while(|frame| frame.record());
        let records = records.map(|record| record.known_until(known_ms)).collect();
        Some(Self { boot_id, known_ms, records })
    }
}

impl Fields<'_> {
    /// The record of a request that was open at this time and ended at an unknown time after it.
    fn known_until(mut self, known_ms: u64) -> Self {
        let more_ms = known_ms.saturating_sub(self.ended_ms);
        self.ended_ms += more_ms;
        match &mut self.held_ms {
            Some(held_ms) => *held_ms += more_ms,
            None => self.waited_ms += more_ms,
        }
        self.at_least = true;
        self
    }

    /// The values that distinguish this request from all others.
    fn identity(&self) -> (u64, u64, u32, String) {
        let key = self.items.first().map(|item| item.key.to_string()).unwrap_or_default();
        (self.asked_ms(), self.session, self.pid, key)
    }
}

/// The records that are not in the files, each once.
pub fn unrecorded(store: &Store, batch: &Batch) -> Batch {
    let since_ms = batch.read().map(|record| record.asked_ms()).min().unwrap_or(u64::MAX);
    let mut known = BTreeSet::new();
    let mut below = u64::MAX;
    while let Some((segment, bytes)) = store.read_before(&mut below) {
        let frames = Frames::of(&bytes).into_iter().flatten();
        let late = frames.filter(|frame| frame.ended_ms() >= since_ms);
        known.extend(late.filter_map(|frame| frame.record()).map(|record| record.identity()));
        if segment.first_ms < since_ms {
            break;
        }
    }
    batch.read().filter(|record| known.insert(record.identity())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Ending, Record, tests::record};
    use crate::store::Limits;

    /// The record of a request that has held its lock since this time, made a second later.
    fn open(since_ms: u64, key: &str) -> Record {
        let ending = Ending::Reboot;
        Record { held_ms: Some(1_000), ending, ..record(since_ms + 1_000, key, 0) }
    }

    fn checkpoint(records: &[Record]) -> Checkpoint {
        let records = records.iter().cloned().collect();
        Checkpoint { boot_id: "one boot".to_owned(), known_ms: 60_000, records }
    }

    #[test]
    fn what_is_open_is_known_until_the_file_was_confirmed_last() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(Checkpoint::read(dir).is_none());
        let waiter = Record { held_ms: None, token: 0, ..open(50_000, "w") };
        checkpoint(&[open(10_000, "a"), waiter]).write(dir).unwrap();
        let read = Checkpoint::read(dir).unwrap();
        assert_eq!((read.boot_id.as_str(), read.known_ms), ("one boot", 60_000));
        let times = |of: &Checkpoint| {
            let of = of.records.read();
            of.map(|it| (it.asked_ms(), it.waited_ms, it.held_ms, it.at_least)).collect::<Vec<_>>()
        };
        let expected = [(8_500, 1_500, Some(50_000), true), (49_500, 10_500, None, true)];
        assert_eq!(times(&read), expected);
        Checkpoint::confirm(dir, 90_000).unwrap();
        let later = times(&Checkpoint::read(dir).unwrap());
        assert_eq!((later[0].2, later[1].1), (Some(80_000), 40_500));
        checkpoint(&[]).write(dir).unwrap();
        assert!(Checkpoint::read(dir).is_none());
        assert!(Checkpoint::confirm(dir, 1).is_err());
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
        let ended = |since_ms, key| Record { ending: Ending::Exited(0), ..open(since_ms, key) };
        store.append(&[ended(1_000, "a"), ended(30_000, "b")].iter().collect(), 0).unwrap();
        // The first request held its lock for longer than the file states, and one request is
        // listed twice.
        let left = [open(1_000, "a").known_until(90_000), open(1_000, "c"), open(1_000, "c")];
        assert!(unrecorded(&store, &left.into_iter().collect()).read().eq([open(1_000, "c")]));
        assert!(unrecorded(&store, &Batch::default()).is_empty());
    }
}
