//! What keeps the ordered entries that the table is a function of.

pub mod engine;
pub mod journal;
pub mod leases;
mod replace;
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

/// A [`Record`] of what others own, to be written.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RecordRef<'a> {
    /// The place.
    #[serde(rename = "r")]
    pub revision: Revision,
    /// What happened.
    #[serde(rename = "e")]
    pub entry: &'a Entry,
    /// What was decided.
    #[serde(rename = "o", skip_serializing_if = "<[_]>::is_empty")]
    pub outcomes: &'a [Outcome],
}
