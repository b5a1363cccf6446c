//! How much disk space the history may take, and for how long it keeps a record. `store` removes
//! the oldest file as a whole to stay within these limits.

use std::io;
use std::path::Path;

/// How much to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many milliseconds to keep a record.
    pub keep_ms: u64,
    /// The total size of the files in bytes.
    pub max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { keep_ms: 30 * 24 * 3600 * 1000, max_bytes: 64 << 20 }
    }
}

/// The smallest size of the files, if `max_bytes` allows it.
const FILE_BYTES_MIN: u64 = 64 * 1024;

/// The largest size: a search reads a whole file at once.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// With at least this many files, removing the oldest loses little.
const FILES: u64 = 8;

/// The disk space left to others, such as the journal, which must be able to grow.
const SPACE_LEFT: u64 = 4 << 20;

impl Limits {
    /// A smaller total size would keep hardly anything.
    pub const MAX_BYTES_MIN: u64 = 64 << 10;

    /// The size at which a file is full.
    pub(super) fn file_bytes(&self) -> u64 {
        let share = (self.max_bytes / FILES).clamp(FILE_BYTES_MIN, FILE_BYTES_MAX);
        share.min(self.max_bytes / 2)
    }
}

/// Checks that the disk of a directory has more space than the history must leave to others.
pub(super) fn check_space(dir: &Path) -> io::Result<()> {
    match fs2::available_space(dir)? {
        ..SPACE_LEFT => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    }
}
