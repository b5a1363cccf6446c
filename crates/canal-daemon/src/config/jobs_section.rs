//! The `[jobs]` table of the configuration. The daemon only shows it; clients follow it.

use serde::Deserialize;

use super::history_section::size;

/// The default for the total size of a user's logs.
const MAX_BYTES: u64 = 256 << 20;

/// The settings of background jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct JobSettings {
    /// How many bytes the records and logs of a user's jobs may have in total.
    #[serde(rename = "max", deserialize_with = "size")]
    pub max_bytes: u64,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self { max_bytes: MAX_BYTES }
    }
}
