//! Stopping the daemon.

use serde::{Deserialize, Serialize};

/// `Stop`: ends the daemon; what it holds is taken up by the next. Same user or root only. The
/// reply comes before it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {}

/// The reply to [`Stop`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// The process that is going to end.
    pub pid: u32,
}
