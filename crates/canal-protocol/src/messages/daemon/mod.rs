//! An operator's calls to the daemon itself.

use serde::{Deserialize, Serialize};

pub(crate) mod configuration;

/// `Metrics`: asks for the daemon's counters and the state of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsQuery {}

/// The reply to a [`MetricsQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// All figures, in the format of OpenMetrics 1.0.
    pub text: String,
}

/// `Stop`: ends the daemon; the next daemon takes over its holds. Only for the same user and root.
/// The daemon replies before it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {}

/// The reply to [`Stop`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// The process that will end.
    pub pid: u32,
}
