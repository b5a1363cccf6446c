//! The format of a journal file: its mark, its header, then records of length, checksum, JSON and
//! trailer.
//!
//! Only the mark decides whether a file is in use, and it is written last when a file comes into
//! use. It is eight bytes in one page, which the kernel copies without interruption (it checks for
//! signals only between pages), so no kill leaves half of it.
//!
//! A write of a record that a kill cuts short leaves a prefix of its bytes, then zeros. Only that
//! reads as [`Framed::Torn`]; a change of any single byte before the last record reads as
//! [`Framed::Bad`].

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use canal_core::ENTRY_VERSION;
use canal_sys::process::Origin;
use canal_text::small_pieces::SmallPieces;

/// The format that this program writes.
pub(super) const FORMAT: u32 = 1;
/// The mark of the file in use. It differs from [`RETIRED`] in every byte.
pub(crate) const LIVE: Mark = *b"canaljnl";
/// The mark of the other file: nothing after it counts.
pub(super) const RETIRED: Mark = *b"CANALOLD";
/// Where the header record begins: after the mark, the format and the format's checksum.
const RECORD: usize = 16;
/// The header record ends in the first page.
pub(super) const HEAD_MAX: usize = 4096;

/// The first bytes of a file.
pub(crate) type Mark = [u8; 8];

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

impl Header {
    /// The beginning of a file that is not yet in use.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let format = FORMAT.to_le_bytes();
        let mut bytes = RETIRED.to_vec();
        bytes.extend_from_slice(&format);
        bytes.extend_from_slice(&crc32fast::hash(&format).to_le_bytes());
        encode(&mut bytes, self)?;
        if bytes.len() > HEAD_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the header is too large"));
        }
        Ok(bytes)
    }

    /// Reads the beginning of a file after its mark; also returns the offset after the header.
    ///
    /// The first [`HEAD_MAX`] bytes of the file are enough.
    pub(super) fn decode(path: &Path, file: &[u8]) -> Result<(Self, usize), OpenError> {
        let damaged = |(offset, what): (usize, String)| OpenError::damaged(path, offset, what);
        let Some(([.., a, b, c, d], rest)) = file.split_first_chunk::<12>() else {
            return Err(damaged((0, "it is too short".to_owned())));
        };
        let format = [*a, *b, *c, *d];
        let sum = rest.first_chunk::<4>().copied().map(u32::from_le_bytes);
        if sum != Some(crc32fast::hash(&format)) {
            return Err(damaged((8, "the format number has a wrong checksum".to_owned())));
        }
        let found = u32::from_le_bytes(format);
        if found > FORMAT {
            return Err(OpenError::newer(path, found, FORMAT));
        }
        #[derive(Deserialize)]
        struct Version {
            entries: u16,
        }
        let (payload, next) =
            read(file, RECORD).whole(RECORD, "the header is cut short").map_err(damaged)?;
        let text = |error: serde_json::Error| damaged((RECORD, error.to_string()));
        // The version first: the rest may have another form in a later one.
        let Version { entries } = serde_json::from_slice(payload).map_err(text)?;
        if entries > ENTRY_VERSION {
            return Err(OpenError::newer(path, entries.into(), ENTRY_VERSION.into()));
        }
        Ok((serde_json::from_slice(payload).map_err(text)?, next))
    }
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It does not have the format of this program: the file, the offset and the error.
    #[error("{path} is damaged at byte {offset}: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The position of the error.
        offset: u64,
        /// The error.
        what: String,
    },
    /// A later version of canal wrote it.
    #[error("a newer canal wrote {path} (format {found}, this one reads up to {known})")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The latest known format.
        known: u32,
    },
    /// A system call failed.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

impl OpenError {
    pub(crate) fn damaged(path: &Path, offset: usize, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset: offset as u64, what: what.into() }
    }

    pub(crate) fn newer(path: &Path, found: u32, known: u32) -> Self {
        Self::Newer { path: path.to_owned(), found, known }
    }

    pub(crate) fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

/// Bytes before the payload: its length and the checksum.
const PREFIX: usize = 8;
/// The last byte of a record. Compact JSON never contains it (a newline in a string is escaped), so
/// a length that damage made too large finds JSON in its place.
const TRAILER: u8 = b'\n';
/// The most bytes of a payload: 1 GiB.
const PAYLOAD_MAX: usize = 1 << 30;

/// The content at a position of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Framed<'a> {
    /// A whole record.
    Whole {
        /// Its JSON.
        payload: &'a [u8],
        /// The offset after it.
        next: usize,
    },
    /// The beginning of a record that was not written to its end: the number of its bytes.
    Torn(usize),
    /// Only zeros to the end of the file.
    End,
    /// Content that was never written in this form.
    Bad {
        /// The offset of the error.
        offset: usize,
        /// The error.
        what: String,
    },
}

impl<'a> Framed<'a> {
    /// The JSON of a record that must be at `at`, and the offset after it; or the offset and the
    /// text of the fault, which is `cut` if the record was not written to its end.
    pub(crate) fn whole(self, at: usize, cut: &str) -> Result<(&'a [u8], usize), (usize, String)> {
        match self {
            Self::Whole { payload, next } => Ok((payload, next)),
            Self::Bad { offset, what } => Err((offset, what)),
            Self::Torn(_) | Self::End => Err((at, cut.to_owned())),
        }
    }
}

/// Appends a record with `payload` as JSON to `buffer`.
///
/// # Errors
/// The payload exceeds the maximum; the buffer is then unchanged.
pub(crate) fn encode(buffer: &mut Vec<u8>, payload: &impl Serialize) -> io::Result<()> {
    let start = buffer.len();
    encode_at(buffer, start, payload).inspect_err(|_| buffer.truncate(start))
}

fn encode_at(buffer: &mut Vec<u8>, start: usize, payload: &impl Serialize) -> io::Result<()> {
    buffer.extend_from_slice(&[0; PREFIX]);
    serde_json::to_writer(SmallPieces(buffer), payload)?;
    let length = buffer.len() - start - PREFIX;
    let Some(field) = u32::try_from(length).ok().filter(|_| length <= PAYLOAD_MAX) else {
        let what = format!("a record of {length} bytes exceeds the journal's limit");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    let length = field.to_le_bytes();
    buffer[start..start + 4].copy_from_slice(&length);
    // The checksum covers the length and the payload, which are therefore adjacent.
    let rest = &mut buffer[start + 4..];
    rest[..4].copy_from_slice(&length);
    let sum = crc32fast::hash(rest).to_le_bytes();
    rest[..4].copy_from_slice(&sum);
    buffer.push(TRAILER);
    Ok(())
}

/// The content of a file: `bytes`, then zeros to its end at `len`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    /// The bytes; some or all of the zeros may be omitted.
    pub(crate) bytes: &'a [u8],
    /// The length of the file.
    pub(crate) len: usize,
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Content<'a> {
    fn from(bytes: &'a T) -> Self {
        let bytes = bytes.as_ref();
        Self { bytes, len: bytes.len() }
    }
}

impl<'a> Content<'a> {
    fn rest(&self, at: usize) -> &'a [u8] {
        self.bytes.get(at..).unwrap_or_default()
    }

    fn prefix(&self, at: usize) -> [u8; PREFIX] {
        let mut prefix = [0; PREFIX];
        prefix.iter_mut().zip(self.rest(at)).for_each(|(to, byte)| *to = *byte);
        prefix
    }

    fn byte(&self, at: usize) -> Option<u8> {
        let zero = (at < self.len).then_some(0);
        self.bytes.get(at).copied().or(zero)
    }
}

/// Reads the content at `at`.
pub(crate) fn read<'a>(file: impl Into<Content<'a>>, at: usize) -> Framed<'a> {
    let file = file.into();
    let [a, b, c, d, sum @ ..] = file.prefix(at);
    let length = [a, b, c, d];
    let size = u32::from_le_bytes(length) as usize;
    if size == 0 {
        let first = file.rest(at).iter().position(|byte| *byte != 0);
        let follow = |first| bad(at + first, "bytes follow the last record".to_owned());
        return first.map_or(Framed::End, follow);
    }
    let after = at.saturating_add(PREFIX).saturating_add(size);
    let Some(trailer) = file.byte(after).filter(|_| size <= PAYLOAD_MAX) else {
        return bad(at, format!("a record has the impossible length {size}"));
    };
    match (trailer, file.bytes.get(at + PREFIX..after)) {
        (TRAILER, Some(payload)) if checksum(length, payload) == u32::from_le_bytes(sum) => {
            Framed::Whole { payload, next: after + 1 }
        }
        (TRAILER, _) => bad(at, "a record has a wrong checksum".to_owned()),
        (0, _) => torn(file, at, after),
        _ => bad(after, "a record does not end at its length".to_owned()),
    }
}

/// Whether all of `bytes` are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// A record without a trailer: torn if it is the beginning of a record, followed by zeros.
fn torn(file: Content<'_>, at: usize, after: usize) -> Framed<'_> {
    if !is_zero(file.rest(after)) {
        return bad(after, "a record has no trailer, and bytes follow it".to_owned());
    }
    let rest = file.rest(at);
    let rest = &rest[..rest.len().min(after - at)];
    let written = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let payload = rest[..written].get(PREFIX..).unwrap_or_default();
    match payload.iter().position(|byte| matches!(*byte, 0 | TRAILER)) {
        Some(inside) => bad(at + PREFIX + inside, "a record cannot contain this".to_owned()),
        None => Framed::Torn(written),
    }
}

fn bad<'a>(offset: usize, what: String) -> Framed<'a> {
    Framed::Bad { offset, what }
}

fn checksum(length: [u8; 4], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let origin =
            Origin { boot_id: "a-boot".into(), pid_namespace: u64::MAX, time_namespace: u64::MAX };
        Header { generation: u64::MAX, entries: ENTRY_VERSION, rules: u32::MAX, origin }
    }

    fn decode(bytes: &[u8]) -> Result<(Header, usize), OpenError> {
        Header::decode(Path::new("journal.0"), bytes)
    }

    fn newer(bytes: &[u8]) -> (u32, u32) {
        match decode(bytes) {
            Err(OpenError::Newer { found, known, .. }) => (found, known),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_encoded_header_is_read() {
        let mut bytes = header().encode().unwrap();
        let length = bytes.len();
        bytes.resize(HEAD_MAX, 0);
        assert_eq!(decode(&bytes).unwrap(), (header(), length));
    }

    #[test]
    fn a_later_format_is_refused_as_such() {
        let mut bytes = header().encode().unwrap();
        let later = (FORMAT + 1).to_le_bytes();
        bytes[8..12].copy_from_slice(&later);
        bytes[12..16].copy_from_slice(&crc32fast::hash(&later).to_le_bytes());
        assert_eq!(newer(&bytes), (FORMAT + 1, FORMAT));
    }

    #[test]
    fn later_entries_are_refused_as_such() {
        let later = Header { entries: ENTRY_VERSION + 1, ..header() };
        assert_eq!(newer(&later.encode().unwrap()), (2, 1));
    }

    #[test]
    fn any_other_byte_behind_the_mark_is_damage() {
        let whole = header().encode().unwrap();
        for at in 8..whole.len() {
            for flip in 1..=u8::MAX {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                let read = decode(&bytes);
                let is_damage = matches!(read, Err(OpenError::Damaged { .. }));
                assert!(is_damage, "{at} ^ {flip}: {read:?}");
            }
        }
    }

    #[test]
    fn the_marks_share_no_byte() {
        assert!(LIVE.iter().zip(RETIRED).all(|(live, retired)| *live != retired));
    }

    /// Two records and room after them.
    fn two() -> (Vec<u8>, usize, usize) {
        let mut file = Vec::new();
        encode(&mut file, &"the first").unwrap();
        let first = file.len();
        encode(&mut file, &["the", "second\n", "\u{1}"]).unwrap();
        let second = file.len();
        file.resize(second + 300, 0);
        (file, first, second)
    }

    #[test]
    fn an_encoded_record_is_read() {
        let (file, first, second) = two();
        let Framed::Whole { payload, next } = read(&file, 0) else { panic!("not whole") };
        assert_eq!((payload, next), (&b"\"the first\""[..], first));
        let Framed::Whole { payload, next } = read(&file, next) else { panic!("not whole") };
        let words: Vec<String> = serde_json::from_slice(payload).unwrap();
        assert_eq!((words, next), (vec!["the".into(), "second\n".into(), "\u{1}".into()], second));
        assert_eq!(read(&file, next), Framed::End);
        assert_eq!(read(&file, file.len()), Framed::End);
    }

    #[test]
    fn a_record_cut_at_any_byte_is_torn() {
        let (mut file, first, second) = two();
        for cut in (first..second).rev() {
            file[cut..].fill(0);
            match read(&file, first) {
                Framed::Torn(bytes) => {
                    assert!(bytes <= cut - first && is_zero(&file[first + bytes..]));
                    assert_ne!(file[first + bytes - 1], 0);
                }
                // Only zero bytes of it were written.
                Framed::End => assert!(is_zero(&file[first..])),
                other => panic!("cut at {cut}: {other:?}"),
            }
            assert!(matches!(read(&file, 0), Framed::Whole { .. }));
        }
    }

    #[test]
    fn zeros_that_are_left_out_change_nothing() {
        let (mut file, first, second) = two();
        let len = file.len();
        for cut in (first..second).rev() {
            file[cut..].fill(0);
            let used = file.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            for shown in used..=len {
                let content = Content { bytes: &file[..shown], len };
                assert_eq!(read(content, 0), read(&file, 0));
                assert_eq!(read(content, first), read(&file, first));
            }
        }
    }

    #[test]
    fn a_record_that_fills_the_file_is_whole_and_cut_it_is_torn() {
        let (mut file, first, second) = two();
        file.truncate(second);
        assert!(matches!(read(&file, first), Framed::Whole { next, .. } if next == second));
        file[second - 1] = 0;
        assert!(matches!(read(&file, first), Framed::Torn(bytes) if bytes == second - first - 1));
    }

    #[test]
    fn any_other_byte_in_a_record_that_others_follow_is_bad() {
        let (whole, first, _) = two();
        for at in 0..first {
            for flip in 1..=u8::MAX {
                let mut file = whole.clone();
                file[at] ^= flip;
                assert!(matches!(read(&file, 0), Framed::Bad { .. }), "{at} ^ {flip}");
            }
        }
    }

    #[test]
    fn any_other_byte_in_the_last_record_but_a_missing_trailer_is_bad() {
        let (whole, first, second) = two();
        for at in first..second {
            for flip in 1..=u8::MAX {
                let mut file = whole.clone();
                file[at] ^= flip;
                let bad = matches!(read(&file, first), Framed::Bad { .. });
                let cut = at == second - 1 && file[at] == 0;
                assert_eq!(bad, !cut, "{at} ^ {flip}");
            }
        }
    }

    #[test]
    fn a_length_beyond_the_file_is_bad() {
        let mut file = vec![0; 64];
        file[..4].copy_from_slice(&56_u32.to_le_bytes());
        assert!(matches!(read(&file, 0), Framed::Bad { offset: 0, .. }));
        file[..4].copy_from_slice(&55_u32.to_le_bytes());
        assert!(matches!(read(&file, 0), Framed::Torn(1)));
        file[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(read(&file, 0), Framed::Bad { offset: 0, .. }));
    }

    #[test]
    fn a_payload_that_cannot_be_encoded_leaves_the_buffer() {
        let mut buffer = vec![7];
        let no_json = std::collections::BTreeMap::from([([1_u8], 1_u8)]);
        assert!(encode(&mut buffer, &no_json).is_err());
        assert_eq!(buffer, [7]);
    }
}
