//! The progress of a whole request, as the node of a part shows it.

use serde::{Deserialize, Serialize};

use crate::Handle;

/// The most names of nodes in a [`Report`], and the most bytes in each name.
pub const REPORTED_NODES_MAX: usize = 64;

/// `Report`: the progress of the whole request, for people who look at this node. It is only for
/// display. The daemon keeps it in memory until the lease has ended, and forgets it when it
/// restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The secret of the lease at this node; its request may still wait.
    pub handle: Handle,
    /// The number of nodes that must grant it.
    pub need: u64,
    /// The number that have granted it.
    pub held: u64,
    /// The nodes that it waits for, by their names for its user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
}

/// The reply to a [`Report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {}
