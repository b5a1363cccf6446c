//! Figures for monitoring.

use serde::{Deserialize, Serialize};

/// `Metrics`: what the daemon counts, and the state of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsQuery {}

/// The reply to a [`MetricsQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// All figures, as OpenMetrics 1.0 has them.
    pub text: String,
}
