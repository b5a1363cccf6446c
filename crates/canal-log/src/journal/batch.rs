//! The records of one append.

use std::io;

use super::file::FILE_BYTES;
use super::format;
use crate::Record;
use canal_core::{Entry, Outcome, Revision};

/// Records to append in one write, in the order of insertion.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Each record's revision, and the end of its bytes.
    ends: Vec<(Revision, usize)>,
    /// Why one of them could not be encoded.
    failed: Option<io::Error>,
}

impl Batch {
    /// Adds a record. If it cannot be encoded, the batch cannot be appended.
    pub fn push(&mut self, revision: Revision, entry: &Entry, outcomes: &[Outcome]) {
        let record = Record { revision, entry, outcomes };
        if let Err(error) = format::encode(&mut self.bytes, &record) {
            self.failed = Some(error);
        }
        self.ends.push((revision, self.bytes.len()));
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Keeps the first `records`.
    pub fn truncate(&mut self, records: usize) {
        self.ends.truncate(records);
        self.bytes.truncate(self.ends.last().map_or(0, |(_, end)| *end));
    }

    /// Removes all records and keeps some memory for later ones, but not that of a burst.
    pub fn clear(&mut self) {
        self.truncate(0);
        self.bytes.shrink_to(FILE_BYTES as usize);
        self.failed = None;
    }

    /// The bytes, and the revision of the last record, if these are the records after `last`.
    pub(super) fn after(&self, last: Revision) -> io::Result<(&[u8], Revision)> {
        if let Some(error) = &self.failed {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        let follows = |(revision, next): (&(Revision, usize), u64)| revision.0.0 == next;
        if !self.ends.iter().zip(last.0 + 1..).all(follows) {
            return Err(invalid("the revisions of the records have a gap"));
        }
        Ok((&self.bytes, self.ends.last().map_or(last, |(revision, _)| *revision)))
    }
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
