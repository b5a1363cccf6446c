//! Why a daemon cannot start.

use std::borrow::Cow;

/// Why the daemon cannot start, if something can be done about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Unusable {
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: Cow<'static, str>,
}
