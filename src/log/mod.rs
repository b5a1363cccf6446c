//! What keeps the ordered entries that the table is a function of.

pub mod engine;
pub mod journal;
pub mod state;

use serde::{Deserialize, Serialize};

use crate::core::{Entry, Outcome, Revision};

/// An entry at its place in the log, with what was decided by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The place.
    #[serde(rename = "r")]
    pub revision: Revision,
    /// What happened.
    #[serde(rename = "e")]
    pub entry: Entry,
    /// What was decided.
    #[serde(default, rename = "o", skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Outcome>,
}
