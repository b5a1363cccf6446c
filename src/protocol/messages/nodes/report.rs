//! What a node shows of the whole request of which it holds a part.

use serde::{Deserialize, Serialize};

use crate::protocol::Handle;

/// The most names of nodes that a [`Report`] may have, and the most bytes of each of them.
pub const REPORTED_NODES_MAX: usize = 64;

/// `Report`: how far the whole request is, for people who look at this node. It is shown and never
/// decided upon. The daemon keeps it in memory until the lease has ended, and forgets it when it
/// restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The secret of the lease at this node; its request may still wait.
    pub handle: Handle,
    /// How many nodes have to grant it.
    pub need: u64,
    /// How many have.
    pub held: u64,
    /// The nodes that it waits for, by the names that its user knows them by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
}

/// The reply to a [`Report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {}
