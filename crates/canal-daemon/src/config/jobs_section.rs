//! The `[jobs]` table of the configuration. The daemon only shows it; clients follow it.

use serde::Deserialize;

use super::history_section::Bytes;

/// The default for the total size of a user's logs.
const MAX_BYTES: u64 = 256 << 20;

/// `[jobs]` as the file contains it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Section {
    max: Option<Bytes>,
}

/// The settings of background jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobSettings {
    /// How many bytes the records and logs of a user's jobs may have in total.
    pub max_bytes: u64,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self { max_bytes: MAX_BYTES }
    }
}

impl Section {
    pub(crate) fn settings(&self) -> JobSettings {
        JobSettings { max_bytes: self.max.map_or(MAX_BYTES, |max| max.0) }
    }
}
