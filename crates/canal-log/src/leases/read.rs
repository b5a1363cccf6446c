//! Recovery: reads the file without changing it.
//!
//! A power cut in the last append leaves each sector of the disk either as it was (absent, or
//! zeros) or as written. JSON contains no zeros, so an unwritten sector is recognizable.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::record::{self, Content, Framed};
use super::{Changes, Header, HeldLease, OpenError, VERSION};
use canal_core::Token;

/// The unit that a disk writes as a whole or not at all.
const SECTOR: usize = 512;

type Held = BTreeMap<Token, HeldLease>;

/// Reads the file of this name: its leases, and the bytes of an unfinished append.
pub(super) fn file(path: &Path) -> Result<Option<(Held, u64)>, OpenError> {
    let failed = |error| OpenError::Io { path: path.to_owned(), error };
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if !file.metadata().map_err(failed)?.is_file() {
        let what = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(failed(what));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    let (leases, end) = held(path, &bytes)?;
    Ok(Some((leases, (bytes.len() - end) as u64)))
}

/// The leases in the file, and where the last whole frame ends.
pub(super) fn held(path: &Path, bytes: &[u8]) -> Result<(Held, usize), OpenError> {
    let (header, mut at) = header(path, bytes)?;
    let (mut leases, mut frames) = (Held::new(), 0);
    loop {
        // Missing bytes at the end count as zeros.
        match record::read(Content { bytes, len: usize::MAX }, at) {
            Framed::Whole { payload, next } => {
                let Changes { ended, held } = parse(path, at, payload)?;
                ended.iter().for_each(|token| drop(leases.remove(token)));
                leases.extend(held.into_iter().map(|lease| (lease.hold.token, lease)));
                at = next;
                frames += 1;
            }
            _ if frames < header.frames => {
                return Err(damaged(path, at, "the file was cut short"));
            }
            Framed::Torn { .. } | Framed::End => return Ok((leases, at)),
            Framed::Bad { .. } if is_unfinished(bytes, at) => return Ok((leases, at)),
            Framed::Bad { offset, what } => return Err(damaged(path, offset, &what)),
        }
    }
}

fn header(path: &Path, bytes: &[u8]) -> Result<(Header, usize), OpenError> {
    let (payload, next) = match record::read(Content { bytes, len: bytes.len() }, 0) {
        Framed::Whole { payload, next } => (payload, next),
        Framed::Bad { offset, what } => return Err(damaged(path, offset, &what)),
        Framed::Torn { .. } | Framed::End => {
            return Err(damaged(path, 0, "it does not begin like a record of leases"));
        }
    };
    let header: Header = parse(path, 0, payload)?;
    if header.version > VERSION {
        let path = path.to_owned();
        return Err(OpenError::Newer { path, found: header.version, known: VERSION });
    }
    Ok((header, next))
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
    let is_whole = |at| {
        let content = Content { bytes, len: bytes.len() };
        matches!(record::read(content, at), Framed::Whole { .. })
    };
    sectors.any(record::is_zero) && !behind.any(is_whole)
}

fn parse<T: DeserializeOwned>(path: &Path, at: usize, payload: &[u8]) -> Result<T, OpenError> {
    serde_json::from_slice(payload).map_err(|error| damaged(path, at, &error.to_string()))
}

fn damaged(path: &Path, offset: usize, what: &str) -> OpenError {
    let path = path.to_owned();
    OpenError::Damaged { path, offset: offset as u64, what: what.to_owned(), origin: None }
}
