//! The files of the history: a directory with one file for a range of records. The name of a file
//! is the number of its first record.
//!
//! Invariant: the directory is readable at all times and has about `max_bytes` at most. The oldest
//! file is removed as a whole to make room.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::disk_space::{Limits, check_space};
use super::file_format::{self, Batch, HEADER, MAGIC};
use canal_sys::private_dir::remove_if_there;
use canal_sys::process::user;

/// The name of an unreadable file. One such file is kept.
const DAMAGED: &str = "damaged";

/// The files of the history.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    limits: Limits,
    /// The oldest one first.
    segments: VecDeque<Segment>,
    /// The last file, if records are appended to it.
    current: Option<File>,
    /// The number of the next record.
    next: u64,
}

/// A file of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// The number of its first record.
    pub(super) first: u64,
    /// Its size in bytes.
    pub(super) bytes: u64,
    /// When its first record ended.
    pub(super) first_ms: u64,
}

impl Store {
    /// Opens the history, or creates one. Also returns a message about files that could not be read
    /// and were set aside.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(dir: &Path, limits: Limits) -> io::Result<(Self, Option<String>)> {
        create_dir(dir)?;
        let mut names: Vec<u64> = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.extend(entry?.file_name().to_str().and_then(number_of));
        }
        names.sort_unstable();
        let mut store =
            Self { dir: dir.to_owned(), limits, segments: VecDeque::new(), current: None, next: 1 };
        let mut aside = None;
        let last = names.last().copied();
        for first in names {
            let path = store.path(first);
            let unusable = match open_plain(&path) {
                Err(_) => Some("cannot be read"),
                Ok(file) if Some(first) == last => store.take_up_last(first, file)?,
                Ok(file) => store.take_up(first, file)?,
            };
            if let Some(why) = unusable {
                let to = dir.join(DAMAGED);
                let _ = fs::remove_file(&to).or_else(|_| fs::remove_dir_all(&to));
                fs::rename(&path, to)?;
                aside = Some(format!("{} {why}", path.display()));
            }
            store.next = store.next.max(first.saturating_add(1));
        }
        Ok((store, aside))
    }

    /// Takes over a file. Returns why that is impossible, if it is.
    fn take_up(&mut self, first: u64, mut file: File) -> io::Result<Option<&'static str>> {
        let bytes = file.metadata()?.len();
        let mut begin = [0; 64];
        let read = file.read(&mut begin)?;
        let Some(record) = begin[..read].strip_prefix(MAGIC) else {
            return Ok(Some("is not a history file, or has another version"));
        };
        let first_ms = record.get(HEADER..).map_or(0, file_format::ended_ms);
        self.segments.push_back(Segment { first, bytes, first_ms });
        Ok(None)
    }

    /// Takes over the file that was appended to last, without a torn last record.
    fn take_up_last(&mut self, first: u64, mut file: File) -> io::Result<Option<&'static str>> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let found = file_format::readable(&bytes);
        self.next = first.saturating_add(found.records);
        if found.damaged {
            return Ok(Some("is damaged"));
        }
        let mut options = OpenOptions::new();
        options.append(true).custom_flags(libc::O_NOFOLLOW);
        let mut current = options.open(self.path(first))?;
        if found.end < bytes.len() {
            current.set_len(found.end as u64)?;
        }
        if found.end == 0 {
            current.write_all(MAGIC)?;
        }
        self.current = Some(current);
        file.rewind()?;
        self.take_up(first, file)
    }

    /// Appends records, the oldest first, and removes records that are too old or too many.
    ///
    /// # Errors
    /// Some of the records could not be written. The records written before stay.
    pub fn append(&mut self, batch: &Batch, now_ms: u64) -> io::Result<()> {
        self.forget_removed();
        check_space(&self.dir)?;
        for (bytes, records, first_ms) in batch.parts(self.limits.file_bytes()) {
            self.write(bytes, records, first_ms)?;
        }
        let oldest = now_ms.saturating_sub(self.limits.keep_ms);
        // In the first file, every record is then too old.
        while self.segments.get(1).is_some_and(|second| second.first_ms < oldest) {
            self.remove_first()?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], count: u64, begin_ms: u64) -> io::Result<()> {
        let length = bytes.len() as u64;
        let used = self.segments.back().map_or(0, |segment| segment.bytes);
        if self.current.is_none()
            || used > MAGIC.len() as u64 && used + length > self.limits.file_bytes()
        {
            self.current = None;
            self.make_room(length + MAGIC.len() as u64)?;
            self.begin_file(begin_ms)?;
        } else {
            self.make_room(length)?;
        }
        let (Some(file), Some(segment)) = (&mut self.current, self.segments.back_mut()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if let Err(error) = file.write_all(bytes) {
            // Part of a record may be written, and the next one must not follow it.
            let _ = file.set_len(segment.bytes);
            self.current = None;
            return Err(error);
        }
        if segment.bytes == MAGIC.len() as u64 {
            segment.first_ms = begin_ms;
        }
        segment.bytes += length;
        self.next += count;
        Ok(())
    }

    fn begin_file(&mut self, begin_ms: u64) -> io::Result<()> {
        let first = self.next;
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(self.path(first))?;
        // A file of this name has no record that the store knows.
        file.set_len(0)?;
        file.write_all(MAGIC)?;
        self.current = Some(file);
        self.segments.retain(|segment| segment.first != first);
        self.segments.push_back(Segment { first, bytes: MAGIC.len() as u64, first_ms: begin_ms });
        Ok(())
    }

    /// Removes the oldest files until there is room for this many more bytes.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        let keep = usize::from(self.current.is_some());
        while self.bytes() + bytes > self.limits.max_bytes && self.segments.len() > keep {
            self.remove_first()?;
        }
        Ok(())
    }

    fn remove_first(&mut self) -> io::Result<()> {
        let Some(segment) = self.segments.front().copied() else { return Ok(()) };
        remove_if_there(&self.path(segment.first))?;
        self.segments.pop_front();
        Ok(())
    }

    /// Detects that the file that is appended to, or the directory, was removed.
    fn forget_removed(&mut self) {
        let Some(last) = self.segments.back().filter(|_| self.current.is_some()) else { return };
        if !self.path(last.first).exists() {
            self.current = None;
            let path = |first| self.dir.join(name_of(first));
            self.segments.retain(|segment| path(segment.first).exists());
            let _ = create_dir(&self.dir);
        }
    }

    /// The size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// The files, the latest first.
    pub(super) fn segments(&self) -> impl Iterator<Item = Segment> {
        self.segments.iter().rev().copied()
    }

    /// Reads the last file whose records come before one with this number, and sets the number to
    /// that of the first of them. Between two calls, the store may change.
    pub(super) fn read_before(&self, number: &mut u64) -> Option<(Segment, Vec<u8>)> {
        let segment = self.segments().find(|segment| segment.first < *number)?;
        *number = segment.first;
        Some((segment, self.read(segment)))
    }

    /// The content of a file; empty if the file is gone.
    pub(super) fn read(&self, segment: Segment) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok(file) = open_plain(&self.path(segment.first)) {
            // A search uses the part that was read before an error.
            let _ = file.take(segment.bytes).read_to_end(&mut bytes);
        }
        bytes
    }

    fn path(&self, first: u64) -> PathBuf {
        self.dir.join(name_of(first))
    }
}

fn name_of(first: u64) -> String {
    format!("{first:016x}")
}

fn number_of(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name, 16).ok()?;
    (name_of(number) == name).then_some(number)
}

pub(super) fn open_plain(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Creates the directory, only for this user.
fn create_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = user::lstat(dir)?;
    if !user::is_dir(&found) || found.st_uid != user::geteuid().as_raw() {
        let what = "is not a directory of this user";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    if found.st_mode & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;
    use crate::search::{Query, Search};

    const WIDE: Limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 30 };

    fn open(dir: &Path, limits: Limits) -> Store {
        let (store, aside) = Store::open(dir, limits).unwrap();
        assert_eq!(aside, None);
        store
    }

    fn some(times: std::ops::Range<u64>) -> Batch {
        times.map(|ms| record(ms, "x", 0)).collect::<Vec<_>>().iter().collect()
    }

    /// When the records ended that can be found, the oldest first.
    fn times(store: &Store) -> Vec<u64> {
        let (mut times, mut before) = (Vec::new(), None);
        loop {
            let mut search = Search::new(Query { limit: usize::MAX, before, ..Query::default() });
            while !search.step(store) {}
            times.extend(search.found.records.iter().map(|record| record.ended_ms));
            before = search.found.before;
            if before.is_none() {
                times.reverse();
                return times;
            }
        }
    }

    fn files(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_next_daemon_goes_on_where_the_last_one_was_killed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("history");
        let mut store = open(&dir, WIDE);
        store.append(&some(1..4), 4).unwrap();
        drop(store);
        let path = dir.join("0000000000000001");
        let whole = fs::read(&path).unwrap();
        // Cuts the last record at every possible length.
        for end in 0..=whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            let mut store = open(&dir, WIDE);
            let before = times(&store);
            assert!((1..4).collect::<Vec<_>>().starts_with(&before), "{end}: {before:?}");
            store.append(&some(9..10), 9).unwrap();
            let after = times(&store);
            assert_eq!(after.last(), Some(&9), "{end}");
            assert_eq!(after.len(), before.len() + 1, "{end}");
            assert_eq!(times(&open(&dir, WIDE)), after, "{end}");
            assert_eq!(files(&dir).len(), 1);
        }
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_the_rest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let small = Limits { max_bytes: 1 << 20, ..WIDE };
        let mut store = open(dir, small);
        let each = 4_000;
        store.append(&some(0..each), 0).unwrap();
        let names = files(dir);
        assert!(names.len() > 2, "{names:?}");
        let last = dir.join(names.last().unwrap());
        let mut bytes = fs::read(&last).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&last, bytes).unwrap();
        let (mut store, aside) = Store::open(dir, small).unwrap();
        let aside = aside.unwrap();
        assert!(aside.contains(names.last().unwrap()) && aside.ends_with("is damaged"), "{aside}");
        assert!(dir.join(DAMAGED).exists());
        let before = times(&store);
        assert!(!before.is_empty());
        store.append(&some(each..each + 1), each).unwrap();
        assert_eq!(times(&store).len(), before.len() + 1);
        assert_eq!(times(&open(dir, small)).last(), Some(&each));
        // A foreign file, in the middle.
        fs::write(dir.join(&names[1]), "[core]\n").unwrap();
        let (store, aside) = Store::open(dir, small).unwrap();
        assert!(aside.unwrap().contains("another version"));
        assert_eq!(times(&store).last(), Some(&each));
    }

    #[test]
    fn there_is_never_more_than_the_limit_and_the_newest_stay() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for max_bytes in [4_096, 100_000, 600_000] {
            let limits = Limits { max_bytes, ..WIDE };
            let (mut store, _) = Store::open(dir, limits).unwrap();
            for turn in 0..200 {
                store.append(&some(turn * 100..turn * 100 + 100), 0).unwrap();
                let sizes = files(dir).into_iter().map(|name| dir.join(name).metadata().unwrap());
                let sum: u64 = sizes.map(|found| found.len()).sum();
                assert_eq!(sum, store.bytes());
                // A batch that is larger than the limit is still written as a whole.
                assert!(sum <= max_bytes.max(10_000), "{sum} of {max_bytes}");
            }
            let times = times(&store);
            assert_eq!(times.last(), Some(&19_999));
            assert!(times.is_sorted());
        }
    }

    #[test]
    fn what_is_too_old_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { keep_ms: 10_000, max_bytes: 1 << 20 };
        let mut store = open(dir.path(), limits);
        store.append(&some(0..4_000), 4_000).unwrap();
        let all = files(dir.path()).len();
        store.append(&some(13_000..13_001), 13_000).unwrap();
        assert!(files(dir.path()).len() < all);
        assert_eq!(times(&store).last(), Some(&13_000));
    }

    #[test]
    fn files_are_the_users_alone_and_removed_ones_are_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a/history");
        let mut store = open(&dir, WIDE);
        store.append(&some(1..2), 1).unwrap();
        let mode = |path: &Path| user::stat(path).unwrap().st_mode & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join("0000000000000001"))), (0o700, 0o600));
        fs::remove_dir_all(&dir).unwrap();
        store.append(&some(2..3), 2).unwrap();
        assert_eq!(times(&store), [2]);
        assert_eq!(times(&open(&dir, WIDE)), [2]);
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("history");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        let error = Store::open(&link, WIDE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
