//! Stopping the daemon.

use serde::{Deserialize, Serialize};

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
