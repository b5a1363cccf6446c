//! The leases that hold something, in a file that survives a reboot.
//!
//! One append is one frame (like the journal's), synced before any client gets an answer. The file
//! is rewritten when most of it describes ended leases. `docs/journal.md` describes it.
//!
//! Recovery reads the file without changing it. A power cut in the last append leaves each sector
//! of the disk either as it was (absent, or zeros) or as written. JSON contains no zeros, so an
//! unwritten sector is recognizable.
//!
//! Invariant: once [`LeaseLog::store`] has returned, a power cut loses none of its changes.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::journal::OpenError;
use super::journal::format::{self, Content, Framed};
use super::replace_file::{named, replace, sweep};
use crate::disk::{self, leads_to, open_plain};
use canal_core::{FrameState, HoldState, Token};

/// The name of the file.
pub const NAME: &str = "leases.log";
/// The version that this program writes.
const VERSION: u32 = 1;
/// The fewest bytes to append before the file is rewritten.
const APPENDED_MIN: u64 = 256 * 1024;

/// A lease that holds something, with every part of a table that is needed to restore it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLease {
    /// Its frame.
    pub frame: FrameState,
    /// Its hold.
    pub hold: HoldState,
}

/// The changes since the last append: each frame after the first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Changes {
    /// The tokens of leases in the file that no longer hold anything. These come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<Token>,
    /// Leases that are not in the file, or are there with another note.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldLease>,
}

/// The file of the leases. This process owns only a file that it has written itself.
#[derive(Debug)]
pub struct LeaseLog {
    dir: PathBuf,
    /// The file that this process created; `None` before its first store, or if the content is
    /// unknown.
    file: Option<File>,
    /// Where the last frame ends.
    end: u64,
    /// The file is not rewritten up to this length, because there was no room for that.
    not_before: u64,
    /// The leases in the file, and about how many bytes each takes.
    live: BTreeMap<Token, u64>,
    /// The sum of these bytes.
    live_bytes: u64,
}

/// The result of opening the file.
#[derive(Debug)]
pub struct Opened {
    /// The file, for later changes.
    pub log: LeaseLog,
    /// The leases by token; `None` if there is no file.
    pub leases: Option<BTreeMap<Token, HeldLease>>,
    /// The bytes of an unfinished last append, which do not count; 0 without one.
    pub torn_bytes: u64,
}

/// The first frame of a file.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    /// The number of frames that were written together with this one. None of them is ever torn.
    frames: usize,
}

impl LeaseLog {
    /// Reads the file in `dir`. Leaves it unchanged until the first [`Self::store`], which rewrites
    /// it: so two daemons that share a directory never write to one file.
    ///
    /// # Errors
    /// The file does not have this program's format, and no unfinished append explains that.
    pub fn open(dir: &Path) -> Result<Opened, OpenError> {
        sweep(dir, NAME);
        let (leases, torn_bytes) = file(&dir.join(NAME))?.unzip();
        // No store appends to this file, so its sizes do not matter.
        let live = leases.iter().flatten().map(|(token, _)| (*token, 0)).collect();
        let (dir, file) = (dir.to_owned(), None);
        let log = Self { dir, file, end: 0, not_before: 0, live, live_bytes: 0 };
        Ok(Opened { log, leases, torn_bytes: torn_bytes.unwrap_or_default() })
    }

    /// The leases in the file.
    pub fn tokens(&self) -> impl Iterator<Item = Token> {
        self.live.keys().copied()
    }

    /// Whether a lease is in the file.
    pub fn has(&self, token: Token) -> bool {
        self.live.contains_key(&token)
    }

    /// Makes `changes` durable. If the file has to be rewritten, calls `all` for all leases after
    /// the changes.
    ///
    /// # Errors
    /// Names the file. Some of the changes may be durable.
    pub fn store(
        &mut self,
        changes: Changes,
        all: impl FnOnce() -> Vec<HeldLease>,
    ) -> io::Result<()> {
        let own = self.file.as_ref();
        // Whether the file of this name is still the one that this process wrote.
        let is_whole = own.is_some_and(|own| leads_to(&self.path(), own).is_ok_and(|leads| leads));
        if !is_whole {
            return self.write_anew(all());
        }
        if self.wants_compaction() {
            match self.write_anew(all()) {
                Ok(()) => return Ok(()),
                // Without room for the whole file, there may still be room for a frame.
                Err(_) => self.not_before = self.end + APPENDED_MIN + self.live_bytes,
            }
        }
        self.append(&changes).map_err(|error| named(&self.path(), &error))
    }

    /// Writes a file with exactly these leases, replacing the present one.
    ///
    /// # Errors
    /// Names the file, which is then either the old one or the new one.
    pub fn write_anew(&mut self, leases: Vec<HeldLease>) -> io::Result<()> {
        let mut bytes = Vec::new();
        format::encode(&mut bytes, &Header { version: VERSION, frames: leases.len() })?;
        let mut live = BTreeMap::new();
        for lease in leases {
            let (token, start) = (lease.hold.token, bytes.len());
            format::encode(&mut bytes, &Changes { held: vec![lease], ..Changes::default() })?;
            live.insert(token, (bytes.len() - start) as u64);
        }
        self.file = Some(replace(&self.dir, NAME, &bytes)?);
        self.end = bytes.len() as u64;
        self.live_bytes = live.values().sum();
        self.live = live;
        self.not_before = 0;
        Ok(())
    }

    fn append(&mut self, changes: &Changes) -> io::Result<()> {
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let mut bytes = Vec::new();
        format::encode(&mut bytes, changes)?;
        if let Err(error) = disk::write(file, &bytes, self.end) {
            if disk::set_len(file, self.end).is_err() {
                self.file = None;
            }
            return Err(error);
        }
        if let Err(error) = disk::sync(file) {
            // The state of the disk is unknown: a second sync can succeed although the first one
            // lost the data.
            self.file = None;
            return Err(error);
        }
        self.end += bytes.len() as u64;
        self.note(changes, bytes.len() as u64);
        Ok(())
    }

    fn note(&mut self, changes: &Changes, bytes: u64) {
        for token in &changes.ended {
            self.live_bytes -= self.live.remove(token).unwrap_or(0);
        }
        let each = bytes / changes.held.len().max(1) as u64;
        for lease in &changes.held {
            self.live_bytes += each;
            self.live_bytes -= self.live.insert(lease.hold.token, each).unwrap_or(0);
        }
    }

    /// All rewrites together cost at most as much as all appends.
    fn wants_compaction(&self) -> bool {
        self.end > self.not_before.max(2 * self.live_bytes + APPENDED_MIN)
    }

    fn path(&self) -> PathBuf {
        self.dir.join(NAME)
    }
}

/// The unit that a disk writes as a whole or not at all.
const SECTOR: usize = 512;

type Held = BTreeMap<Token, HeldLease>;

/// Reads the file of this name: its leases, and the bytes of an unfinished append.
fn file(path: &Path) -> Result<Option<(Held, u64)>, OpenError> {
    let failed = |error| OpenError::io(path, error);
    let file = open_plain(OpenOptions::new().read(true), path).map_err(failed)?;
    let Some(mut file) = file else { return Ok(None) };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    let (leases, end) = held(path, &bytes)?;
    Ok(Some((leases, (bytes.len() - end) as u64)))
}

/// The leases in the file, and where the last whole frame ends.
fn held(path: &Path, bytes: &[u8]) -> Result<(Held, usize), OpenError> {
    let (payload, mut at) = format::read(bytes, 0)
        .whole(0, "it does not begin like a record of leases")
        .map_err(|(offset, what)| OpenError::damaged(path, offset, what))?;
    let header: Header = parse(path, 0, payload)?;
    if header.version > VERSION {
        return Err(OpenError::newer(path, header.version, VERSION));
    }
    let (mut leases, mut frames) = (Held::new(), 0);
    loop {
        // Missing bytes at the end count as zeros.
        match format::read(Content { bytes, len: usize::MAX }, at) {
            Framed::Whole { payload, next } => {
                let Changes { ended, held } = parse(path, at, payload)?;
                ended.iter().for_each(|token| drop(leases.remove(token)));
                leases.extend(held.into_iter().map(|lease| (lease.hold.token, lease)));
                at = next;
                frames += 1;
            }
            _ if frames < header.frames => {
                return Err(OpenError::damaged(path, at, "the file was cut short"));
            }
            Framed::Torn(_) | Framed::End => return Ok((leases, at)),
            Framed::Bad { .. } if is_unfinished(bytes, at) => return Ok((leases, at)),
            Framed::Bad { offset, what } => return Err(OpenError::damaged(path, offset, what)),
        }
    }
}

/// Whether the bytes from `at` on can be one append that a power cut interrupted: at least one of
/// its sectors was not written, and no whole frame follows, since it would have been written later.
fn is_unfinished(bytes: &[u8], at: usize) -> bool {
    let tail = &bytes[at..];
    let first = (SECTOR - at % SECTOR).min(tail.len());
    let (head, rest) = tail.split_at(first);
    let mut sectors = std::iter::once(head).chain(rest.chunks(SECTOR));
    let newlines = tail.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let mut behind = newlines.map(|(offset, _)| at + offset + 1);
    let is_whole = |at| matches!(format::read(bytes, at), Framed::Whole { .. });
    sectors.any(format::is_zero) && !behind.any(is_whole)
}

fn parse<T: DeserializeOwned>(path: &Path, at: usize, payload: &[u8]) -> Result<T, OpenError> {
    serde_json::from_slice(payload).map_err(|error| OpenError::damaged(path, at, error.to_string()))
}

#[cfg(test)]
mod tests;
