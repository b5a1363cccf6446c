//! The beginning of a journal file: its mark, its format, and its writer.
//!
//! Only the mark decides whether a file is in use, and it is written last when a file comes into
//! use. It is eight bytes in one page, which the kernel copies without interruption (it checks for
//! signals only between pages), so no kill leaves half of it.

use std::io;

use serde::{Deserialize, Serialize};

use super::record::{self, Content, Framed};
use canal_core::ENTRY_VERSION;
use canal_sys::process::Origin;

/// The format that this program writes.
pub(super) const FORMAT: u32 = 1;
/// The mark of the file in use. It differs from [`RETIRED`] in every byte.
pub(super) const LIVE: Mark = *b"canaljnl";
/// The mark of the other file: nothing after it counts.
pub(super) const RETIRED: Mark = *b"CANALOLD";
/// Where the header record begins: after the mark, the format and the format's checksum.
const RECORD: usize = 16;
/// The header record ends in the first page.
pub(super) const HEAD_MAX: usize = 4096;

/// The first bytes of a file.
pub(super) type Mark = [u8; 8];

/// The writer of a file, and the file's place in the order of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    /// Of two files in use, the one with the higher generation counts.
    pub(super) generation: u64,
    /// The highest version of entries in it.
    pub(super) entries: u16,
    /// The rules under which its entries were decided.
    pub(super) rules: u32,
    /// The origin of the pids in this file.
    pub(super) origin: Origin,
}

/// Why a header cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// It does not have the format of this program: the offset and the error.
    Damaged(usize, String),
    /// A later version wrote it: its number and the latest known one.
    Newer(u32, u32),
}

impl Header {
    /// The beginning of a file that is not yet in use.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let format = FORMAT.to_le_bytes();
        let mut bytes = RETIRED.to_vec();
        bytes.extend_from_slice(&format);
        bytes.extend_from_slice(&crc32fast::hash(&format).to_le_bytes());
        record::encode(&mut bytes, self)?;
        if bytes.len() > HEAD_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the header is too large"));
        }
        Ok(bytes)
    }

    /// Reads the beginning of a file after its mark; also returns the offset after the header.
    ///
    /// The first [`HEAD_MAX`] bytes of the file are enough.
    pub(super) fn decode(file: &[u8]) -> Result<(Self, usize), HeaderError> {
        let damaged = |offset, what: &str| Err(HeaderError::Damaged(offset, what.to_owned()));
        let Some(([.., a, b, c, d], rest)) = file.split_first_chunk::<12>() else {
            return damaged(0, "it is too short");
        };
        let format = [*a, *b, *c, *d];
        let sum = rest.first_chunk::<4>().copied().map(u32::from_le_bytes);
        if sum != Some(crc32fast::hash(&format)) {
            return damaged(8, "the format number has a wrong checksum");
        }
        let found = u32::from_le_bytes(format);
        if found > FORMAT {
            return Err(HeaderError::Newer(found, FORMAT));
        }
        let (payload, next) = match record::read(Content { bytes: file, len: file.len() }, RECORD) {
            Framed::Whole { payload, next } => (payload, next),
            Framed::Bad { offset, what } => return Err(HeaderError::Damaged(offset, what)),
            Framed::Torn { .. } | Framed::End => return damaged(RECORD, "the header is cut short"),
        };
        Self::parse(payload).map(|header| (header, next))
    }

    fn parse(payload: &[u8]) -> Result<Self, HeaderError> {
        #[derive(Deserialize)]
        struct Version {
            entries: u16,
        }
        let text = |error: serde_json::Error| HeaderError::Damaged(RECORD, error.to_string());
        // The version first: the rest may have another form in a later one.
        let Version { entries } = serde_json::from_slice(payload).map_err(text)?;
        if entries > ENTRY_VERSION {
            return Err(HeaderError::Newer(entries.into(), ENTRY_VERSION.into()));
        }
        serde_json::from_slice(payload).map_err(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let origin =
            Origin { boot_id: "a-boot".into(), pid_namespace: u64::MAX, time_namespace: u64::MAX };
        Header { generation: u64::MAX, entries: ENTRY_VERSION, rules: u32::MAX, origin }
    }

    #[test]
    fn an_encoded_header_is_read() {
        let mut bytes = header().encode().unwrap();
        let length = bytes.len();
        bytes.resize(HEAD_MAX, 0);
        assert_eq!(Header::decode(&bytes), Ok((header(), length)));
    }

    #[test]
    fn a_later_format_is_refused_as_such() {
        let mut bytes = header().encode().unwrap();
        let later = (FORMAT + 1).to_le_bytes();
        bytes[8..12].copy_from_slice(&later);
        bytes[12..16].copy_from_slice(&crc32fast::hash(&later).to_le_bytes());
        assert_eq!(Header::decode(&bytes), Err(HeaderError::Newer(FORMAT + 1, FORMAT)));
    }

    #[test]
    fn later_entries_are_refused_as_such() {
        let later = Header { entries: ENTRY_VERSION + 1, ..header() };
        let newer = HeaderError::Newer(2, 1);
        assert_eq!(Header::decode(&later.encode().unwrap()), Err(newer));
    }

    #[test]
    fn any_other_byte_behind_the_mark_is_damage() {
        let whole = header().encode().unwrap();
        for at in 8..whole.len() {
            for flip in 1..=u8::MAX {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                let read = Header::decode(&bytes);
                assert!(matches!(read, Err(HeaderError::Damaged(..))), "{at} ^ {flip}: {read:?}");
            }
        }
    }

    #[test]
    fn the_marks_share_no_byte() {
        assert!(LIVE.iter().zip(RETIRED).all(|(live, retired)| *live != retired));
    }
}
