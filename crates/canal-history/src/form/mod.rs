//! The form of records in a file: `encoding` of one record, `segment` of a file, `batch` of records
//! on their way to a file.

mod batch;
mod encoding;
mod segment;

pub use batch::Batch;
pub(super) use encoding::Lengths;
pub(super) use segment::{Frame, Frames, MAGIC, append, readable};

#[cfg(test)]
pub(super) use encoding::tests;
