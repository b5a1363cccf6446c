//! Figures for monitoring.

use serde::{Deserialize, Serialize};

/// `Metrics`: asks for the daemon's counters and the state of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsQuery {}

/// The reply to a [`MetricsQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// All figures, in the format of OpenMetrics 1.0.
    pub text: String,
}
