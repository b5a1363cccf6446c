//! Why a daemon cannot start.

use std::borrow::Cow;

/// Why the daemon cannot start, if something can be done about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct StartError {
    /// The problem.
    pub what: String,
    /// The remedy.
    pub hint: Cow<'static, str>,
}
