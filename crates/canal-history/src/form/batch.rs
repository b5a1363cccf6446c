//! Records on their way to a file, in its form. They are in one block of memory, so that a thread
//! can pass many of them to another at once.

use super::encoding::Lengths;
use super::segment::{self, Frames};
use crate::record::{Fields, Record};

/// A batch keeps this much memory for later records when it is cleared.
const KEPT_BYTES: usize = 256 * 1024;

/// Records on their way to a file, in the order of the file.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    records: u64,
}

/// Consecutive records of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) bytes: &'a [u8],
    /// The number of records.
    pub(crate) records: u64,
    /// When the first record ended.
    pub(crate) first_ms: u64,
}

impl Batch {
    /// Appends a record. Omits one that is longer than a file may have.
    pub fn push(&mut self, record: &Fields<'_>) {
        self.records += u64::from(segment::append(record, &mut self.bytes));
    }

    /// Moves all records of another batch to the end of this one.
    pub fn take_from(&mut self, other: &mut Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.records += other.records;
        other.clear();
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.records = 0;
    }

    /// The number of records.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Their size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The counted values of each record.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = Lengths<'_>> {
        Frames::of_appended(&self.bytes).filter_map(|frame| frame.lengths())
    }

    /// The records, read again.
    pub(crate) fn read(&self) -> impl Iterator<Item = Record> {
        Frames::of_appended(&self.bytes).filter_map(|frame| frame.record())
    }

    /// All records, in parts that exceed `most` bytes by less than one record.
    pub(crate) fn parts(&self, most: u64) -> impl Iterator<Item = Part<'_>> {
        let mut frames = Frames::of_appended(&self.bytes);
        std::iter::from_fn(move || {
            let begin = frames.at;
            let first = frames.next()?;
            let first_ms = first.head().map_or(0, |head| head.ended_ms);
            let mut records = 1;
            while ((frames.at - begin) as u64) < most && frames.next().is_some() {
                records += 1;
            }
            Some(Part { bytes: &self.bytes[begin..frames.at], records, first_ms })
        })
    }
}

impl<'a, 'b: 'a> FromIterator<&'a Fields<'b>> for Batch {
    fn from_iter<I: IntoIterator<Item = &'a Fields<'b>>>(records: I) -> Self {
        let mut batch = Self::default();
        records.into_iter().for_each(|record| batch.push(record));
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn parts_have_every_record_once_in_their_order() {
        let records: Vec<Record> = (1..=20).map(|n| record(n, "x", 0)).collect();
        let mut batch = Batch::default();
        batch.take_from(&mut records[..7].iter().collect());
        batch.take_from(&mut records[7..].iter().collect());
        assert_eq!(batch.records(), 20);
        let each = batch.bytes() / 20;
        for most in [1, each, 3 * each + 1, batch.bytes(), usize::MAX] {
            let parts: Vec<_> = batch.parts(most as u64).collect();
            assert_eq!(
                parts.iter().map(|part| part.bytes).collect::<Vec<_>>().concat(),
                batch.bytes
            );
            assert_eq!(parts.iter().map(|part| part.records).sum::<u64>(), 20);
            let mut first = 1;
            for part in parts {
                assert_eq!(part.first_ms, first, "{most}");
                first += part.records;
                assert!(part.bytes.len() < most.saturating_add(each), "{most}");
            }
        }
        batch.clear();
        assert!(batch.is_empty() && batch.parts(1).next().is_none());
    }

    #[test]
    fn a_record_that_is_too_long_is_left_out() {
        let long = Record { command: "x".repeat(segment::RECORD_MAX).into(), ..record(1, "x", 0) };
        let batch: Batch = [&long, &record(2, "x", 0)].into_iter().collect();
        assert_eq!(batch.records(), 1);
        assert_eq!(batch.lengths().map(|it| it.ended_ms).collect::<Vec<_>>(), [2]);
    }
}
