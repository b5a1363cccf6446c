//! One file of the journal: created, allocated, marked, written, wiped.
//!
//! Invariant: from `dirty` to `len` there are only zeros, and all of `len` is allocated, so writing
//! there needs no disk space.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::format::{Mark, is_zero};
use crate::disk::{self, leads_to, open_plain};
use canal_sys::private_dir::is_missing;

/// A kill leaves a write within a page complete: the kernel checks for signals only between pages.
pub(super) const PAGE: u64 = 4096;
/// The size of each of the two files at creation, in bytes.
pub(super) const FILE_BYTES: u64 = 1 << 20;
/// Files grow by this much at once.
pub(super) const CHUNK: u64 = 1 << 20;

/// One file of the journal.
#[derive(Debug)]
pub(super) struct JournalFile {
    file: File,
    /// Its number.
    pub(super) index: usize,
    pub(super) path: PathBuf,
    len: u64,
    dirty: u64,
}

/// The path of the file with this number.
pub fn path(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("journal.{index}"))
}

/// The path of the file with this number until the file is complete.
pub(super) fn path_new(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("journal.{index}.new"))
}

impl JournalFile {
    /// Creates a file of `len` bytes that begins with `content`. It gets its name, replacing any
    /// file of that name, only when it is complete.
    ///
    /// # Errors
    /// The disk is full, or another error. No file is left behind.
    pub(super) fn create(dir: &Path, index: usize, len: u64, content: &[u8]) -> io::Result<Self> {
        let new = path_new(dir, index);
        let create = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true);
            let file = options.mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&new)?;
            let mut made = Self { file, index, path: path(dir, index), len: 0, dirty: 0 };
            made.allocate(len)?;
            made.write(0, content)?;
            disk::rename(&new, &made.path)?;
            Ok(made)
        };
        create().inspect_err(|_| {
            let _ = disk::remove(&new);
        })
    }

    /// Opens a file; `None` if it does not exist.
    pub(super) fn open(dir: &Path, index: usize) -> io::Result<Option<Self>> {
        let path = path(dir, index);
        let options = &mut OpenOptions::new();
        let Some(file) = open_plain(options.read(true).write(true), &path)? else {
            return Ok(None);
        };
        let len = file.metadata()?.len();
        Ok(Some(Self { file, index, path, len, dirty: len }))
    }

    /// Reads the first page.
    pub(super) fn head(&self) -> io::Result<Vec<u8>> {
        let mut head = vec![0; PAGE as usize];
        let size = self.read_piece(&mut head, 0)?;
        head.truncate(size);
        Ok(head)
    }

    /// Reads the file without the zeros at its end, which may far outnumber the other bytes.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let mut piece = vec![0; 256 * 1024];
        let (mut bytes, mut at) = (Vec::new(), 0);
        loop {
            let size = self.read_piece(&mut piece, at as u64)?;
            if size == 0 {
                return Ok(bytes);
            }
            if !is_zero(&piece[..size]) {
                bytes.resize(at, 0);
                bytes.extend_from_slice(&piece[..size]);
            }
            at += size;
        }
    }

    fn read_piece(&self, piece: &mut [u8], at: u64) -> io::Result<usize> {
        loop {
            match self.file.read_at(piece, at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// The number of allocated bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Records that the bytes from `dirty` on were found to be zeros. Fills holes, such as those of
    /// a copied file. If the disk is too full for that, new requests find no room, but the content
    /// stays valid.
    pub(super) fn found(&mut self, dirty: u64) {
        self.dirty = dirty;
        let whole = fs2::FileExt::allocated_size(&self.file).is_ok_and(|size| size >= self.len);
        if !whole && disk::allocate(&self.file, self.len).is_err() {
            self.len = 0;
        }
    }

    /// Allocates at least `need` bytes, in large steps, so that this is rarely needed.
    pub(super) fn grow(&mut self, need: u64) -> io::Result<()> {
        if need <= self.len {
            return Ok(());
        }
        let exact = need.next_multiple_of(PAGE);
        self.allocate(need.next_multiple_of(CHUNK)).or_else(|_| self.allocate(exact))
    }

    fn allocate(&mut self, len: u64) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        disk::allocate(&self.file, len).inspect_err(|_| {
            // Release the space that was allocated before the disk was full.
            let _ = disk::set_len(&self.file, before);
        })?;
        self.len = len;
        Ok(())
    }

    /// Frees the disk space after `len`.
    pub(super) fn shrink(&mut self, len: u64) -> io::Result<()> {
        if len < self.len {
            disk::set_len(&self.file, len)?;
            self.len = len;
            self.dirty = self.dirty.min(len);
        }
        Ok(())
    }

    /// Writes `bytes` at `at`, after which nothing counts. If that fails, wipes the part that was
    /// written, now or before the next write.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let end = at + bytes.len() as u64;
        self.dirty = self.dirty.max(end);
        disk::write(&self.file, bytes, at)
    }

    /// Writes `bytes` at `at`, replacing everything after it.
    pub(super) fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.cut(at)?;
        self.grow(at + bytes.len() as u64)?;
        self.write(at, bytes).inspect_err(|_| {
            let _ = self.cut(at);
        })
    }

    /// Wipes everything after `to`, starting from the end, so that a kill leaves a prefix: a torn
    /// tail remains a torn tail.
    pub(super) fn cut(&mut self, to: u64) -> io::Result<()> {
        const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
        while self.dirty > to {
            let from = ((self.dirty - 1) / PAGE * PAGE).max(to);
            let zeros = ZEROS.get(..(self.dirty - from) as usize).unwrap_or(&ZEROS);
            disk::wipe(&self.file, zeros, from)?;
            self.dirty = from;
        }
        Ok(())
    }

    /// Puts the file into use (`LIVE`), or takes it out of use (`RETIRED`).
    pub(super) fn mark(&mut self, mark: Mark) -> io::Result<()> {
        self.dirty = self.dirty.max(mark.len() as u64);
        disk::write_mark(&self.file, &mark)
    }

    /// Whether its name no longer leads to it.
    pub(super) fn vanished(&self) -> bool {
        leads_to(&self.path, &self.file).map_or_else(|error| is_missing(&error), |leads| !leads)
    }
}
