//! The form of one file: a line that names it, then one record after another. Before each record
//! are its length and a checksum, both with the lowest byte first.
//!
//! A record has the form of the crate postcard: the values of its fields, one after the other.
//!
//! A [`Batch`] has records on their way to a file in this form, in one block of memory, so that a
//! thread can pass many of them to another at once.

use std::borrow::Borrow;

use postcard::take_from_bytes;

use super::record::Record;

/// The first bytes of each file. The number is the version of all that follows.
pub(crate) const MAGIC: &[u8; 16] = b"canal history 5\n";

/// The bytes before each record: its length, and its CRC-32.
pub(crate) const HEADER: usize = 8;

/// The maximum length of a record; longer ones are not written. A request has at most 64 keys of 1
/// KiB.
pub(crate) const RECORD_MAX: usize = 1 << 20;

/// Appends a record in its form. Returns whether it did: it omits a record that is too long.
pub(crate) fn append(record: &Record<'_>, out: &mut Vec<u8>) -> bool {
    let begin = out.len();
    out.extend([0; HEADER]);
    // This fails only for sequences of unknown length, and there are none.
    let Ok(written) = postcard::to_extend(record, std::mem::take(out)) else { return false };
    *out = written;
    let (header, payload) = out[begin..].split_at_mut(HEADER);
    let fits = payload.len() <= RECORD_MAX;
    let Some(length) = u32::try_from(payload.len()).ok().filter(|_| fits) else {
        out.truncate(begin);
        return false;
    };
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    true
}

/// The records of a file, in order. Ends before the first that is not whole.
#[derive(Clone, Debug)]
pub(crate) struct Frames<'a> {
    bytes: &'a [u8],
    /// The start of the next record.
    pub(crate) at: usize,
}

/// A record in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    checksum: u32,
    pub(crate) payload: &'a [u8],
}

impl<'a> Frames<'a> {
    /// The records of a file; `None` if it is no file of the history.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        bytes.starts_with(MAGIC).then_some(Self { bytes, at: MAGIC.len() })
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let rest = self.bytes.get(self.at..)?;
        let (length, after) = rest.split_first_chunk()?;
        let (checksum, after) = after.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        if length == 0 || length > RECORD_MAX {
            return None;
        }
        let payload = after.get(..length)?;
        self.at += HEADER + length;
        Some(Frame { checksum: u32::from_le_bytes(*checksum), payload })
    }
}

impl<'a> Frame<'a> {
    pub(crate) fn is_intact(&self) -> bool {
        crc32fast::hash(self.payload) == self.checksum
    }

    /// When the record ended; 0 if this is no record.
    pub(crate) fn ended_ms(&self) -> u64 {
        ended_ms(self.payload)
    }

    /// When the record ended, its number of items, and its first key; `None` if it has none.
    pub(crate) fn head(&self) -> Option<(u64, usize, &'a str)> {
        take_from_bytes(self.payload).ok().map(|(head, _)| head)
    }

    /// The record; `None` if it is damaged.
    pub(crate) fn record(&self) -> Option<Record<'a>> {
        if self.is_intact() { postcard::from_bytes(self.payload).ok() } else { None }
    }
}

/// When a record ended, of which only the beginning need be there; 0 without one.
pub(crate) fn ended_ms(payload: &[u8]) -> u64 {
    take_from_bytes(payload).map_or(0, |(ended_ms, _)| ended_ms)
}

/// The readable part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readable {
    /// The number of records.
    pub(crate) records: u64,
    /// The end of the last record.
    pub(crate) end: usize,
    /// Whether anything other than a torn record follows.
    pub(crate) damaged: bool,
}

/// Checks a file to which a process may have been appending when it was killed.
pub(crate) fn readable(bytes: &[u8]) -> Readable {
    let Some(mut frames) = Frames::of(bytes) else {
        // The first write was torn.
        let torn = MAGIC.starts_with(bytes);
        return Readable { records: 0, end: 0, damaged: !torn };
    };
    let (mut records, mut end) = (0, frames.at);
    while let Some(frame) = frames.next() {
        if !frame.is_intact() {
            // A record whose bytes were not all written is the last one.
            let damaged = frames.at < bytes.len();
            return Readable { records, end, damaged };
        }
        (records, end) = (records + 1, frames.at);
    }
    let rest = &bytes[end..];
    // A torn record has a length that reaches beyond the end, or only zeros after a power cut.
    let cut = rest.first_chunk().map(|length| u32::from_le_bytes(*length) as usize);
    let torn = match cut {
        None => true,
        Some(0) => rest.iter().all(|byte| *byte == 0),
        Some(length) => length <= RECORD_MAX && length + HEADER > rest.len(),
    };
    Readable { records, end, damaged: !torn }
}

/// A batch keeps this much memory for later records when it is cleared.
const KEPT_BYTES: usize = 256 * 1024;

/// Records on their way to a file, in the order of the file.
#[derive(Debug, Default)]
pub struct Batch {
    /// They have the form of a file, without its first line.
    pub(crate) form: Vec<u8>,
    records: u64,
}

impl Batch {
    /// Appends a record. Omits one that is longer than a file may have.
    pub fn push(&mut self, record: &Record<'_>) {
        self.records += u64::from(append(record, &mut self.form));
    }

    /// Moves all records of another batch to the end of this one.
    pub fn take_from(&mut self, other: &mut Self) {
        self.form.extend_from_slice(&other.form);
        self.records += other.records;
        other.clear();
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        self.form.clear();
        self.form.shrink_to(KEPT_BYTES);
        self.records = 0;
    }

    /// The number of records.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Their size in bytes.
    pub fn bytes(&self) -> usize {
        self.form.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The records, read again.
    pub fn read(&self) -> impl Iterator<Item = Record<'_>> {
        Frames { bytes: &self.form, at: 0 }.filter_map(|frame| frame.record())
    }

    /// All records, in parts that exceed `most` bytes by less than one record: their bytes, their
    /// number, and when the first one ended.
    pub(crate) fn parts(&self, most: u64) -> impl Iterator<Item = (&[u8], u64, u64)> {
        let mut frames = Frames { bytes: &self.form, at: 0 };
        std::iter::from_fn(move || {
            let begin = frames.at;
            let first_ms = frames.next()?.ended_ms();
            let mut records = 1;
            while ((frames.at - begin) as u64) < most && frames.next().is_some() {
                records += 1;
            }
            Some((&self.form[begin..frames.at], records, first_ms))
        })
    }
}

impl<'a, F: Borrow<Record<'a>>> FromIterator<F> for Batch {
    fn from_iter<I: IntoIterator<Item = F>>(records: I) -> Self {
        let mut batch = Self::default();
        records.into_iter().for_each(|record| batch.push(record.borrow()));
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{every_kind, record};

    fn file(records: &[Record<'static>]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for record in records {
            assert!(append(record, &mut out));
        }
        out
    }

    fn some() -> Vec<Record<'static>> {
        (1..=3).map(|n| record(n, "x", 0)).collect()
    }

    #[test]
    fn records_are_read_in_the_order_in_which_they_were_written() {
        let file = file(&some());
        let read: Vec<_> =
            Frames::of(&file).unwrap().map(|frame| frame.record().unwrap()).collect();
        assert_eq!(read, some());
        assert_eq!(readable(&file), Readable { records: 3, end: file.len(), damaged: false });
    }

    #[test]
    fn a_file_that_ends_anywhere_is_torn_and_not_damaged() {
        let whole = file(&some());
        for end in 0..whole.len() {
            let found = readable(&whole[..end]);
            assert!(!found.damaged, "{end}");
            assert!(found.end <= end);
            let mut zeros = whole[..end].to_vec();
            zeros.resize(end + 5000, 0);
            // Only for a cut between two records: after a cut within one, some zeros belong to it.
            if found.end == end && end > 0 {
                assert_eq!(readable(&zeros), found, "{end}");
            }
        }
    }

    #[test]
    fn a_changed_byte_before_the_last_record_is_damage() {
        let whole = file(&some());
        let last = file(&some()[..2]).len();
        for at in 0..last {
            let mut changed = whole.clone();
            changed[at] ^= 0x20;
            let found = readable(&changed);
            let unread = found.records < 3;
            assert!(unread, "byte {at}");
        }
        let mut changed = whole.clone();
        changed[MAGIC.len() + HEADER + 3] ^= 1;
        assert_eq!(readable(&changed), Readable { records: 0, end: MAGIC.len(), damaged: true });
        assert!(readable(b"[core]\n").damaged);
    }

    #[test]
    fn a_record_that_is_too_long_is_left_out() {
        let long = Record { command: "x".repeat(RECORD_MAX).into(), ..record(1, "x", 0) };
        let mut out = Vec::new();
        assert!(!append(&long, &mut out) && out.is_empty());
    }

    #[test]
    fn parts_have_every_record_once_in_their_order() {
        let records: Vec<Record<'static>> = (1..=20).map(|n| record(n, "x", 0)).collect();
        let mut batch = Batch::default();
        batch.take_from(&mut records[..7].iter().collect());
        batch.take_from(&mut records[7..].iter().collect());
        assert_eq!(batch.records(), 20);
        let each = batch.bytes() / 20;
        for most in [1, each, 3 * each + 1, batch.bytes(), usize::MAX] {
            let parts: Vec<_> = batch.parts(most as u64).collect();
            let bytes: Vec<_> = parts.iter().map(|(bytes, ..)| *bytes).collect();
            assert_eq!(bytes.concat(), batch.form);
            assert_eq!(parts.iter().map(|(_, records, _)| records).sum::<u64>(), 20);
            let mut first = 1;
            for (bytes, records, first_ms) in parts {
                assert_eq!(first_ms, first, "{most}");
                first += records;
                assert!(bytes.len() < most.saturating_add(each), "{most}");
            }
        }
        batch.clear();
        assert!(batch.is_empty() && batch.parts(1).next().is_none());
    }

    #[test]
    fn a_batch_omits_a_record_that_is_too_long() {
        let long = Record { command: "x".repeat(RECORD_MAX).into(), ..record(1, "x", 0) };
        let batch: Batch = [&long, &record(2, "x", 0)].into_iter().collect();
        assert_eq!(batch.records(), 1);
        assert_eq!(batch.read().map(|it| it.ended_ms).collect::<Vec<_>>(), [2]);
    }

    /// The form of a record, without its length and checksum.
    fn form(record: &Record<'_>) -> Vec<u8> {
        postcard::to_extend(record, Vec::new()).unwrap()
    }

    fn frame(payload: &[u8]) -> Frame<'_> {
        Frame { checksum: crc32fast::hash(payload), payload }
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let never = Record { held_ms: None, token: 0, ..record(1, "x", 0) };
        for record in every_kind().chain([never]) {
            let form = form(&record);
            assert_eq!(frame(&form).record(), Some(record));
        }
    }

    #[test]
    fn the_head_of_a_record_has_its_first_values() {
        for record in every_kind() {
            let form = form(&record);
            assert_eq!(frame(&form).head(), Some((record.ended_ms, record.items.len(), "ä")));
            assert_eq!(ended_ms(&form[..10]), record.ended_ms, "the beginning is enough");
        }
    }

    #[test]
    fn a_part_of_a_record_is_none_and_ends_nothing() {
        for record in every_kind() {
            let whole = form(&record);
            for end in 0..whole.len() {
                assert_eq!(frame(&whole[..end]).record(), None, "{end}");
                let _ = frame(&whole[..end]).head();
            }
        }
    }

    #[test]
    fn any_changed_byte_is_survived() {
        for record in every_kind() {
            let whole = form(&record);
            for at in 0..whole.len() {
                for byte in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut changed = whole.clone();
                    changed[at] = byte;
                    let _ = frame(&changed).record();
                    let _ = frame(&changed).head();
                }
            }
        }
    }
}
