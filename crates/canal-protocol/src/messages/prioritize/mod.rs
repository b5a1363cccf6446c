//! Changes of the priority of waiting requests.

use serde::{Deserialize, Serialize};

/// `Prioritize`: gives the waiting requests of a session another priority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prioritize {
    /// The session.
    pub session: String,
    /// The new priority. Absent: a priority that puts it before all others that wait for its keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

/// The result of a [`Prioritize`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prioritized {
    /// The session.
    pub session: String,
    /// The previous priority.
    pub before: i32,
    /// The priority that it has now.
    pub priority: i32,
    /// Its position at the key that blocks it; 0 if it was granted.
    pub position: u64,
}
