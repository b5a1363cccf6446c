//! The keepers of the ordered entries from which the table is computed.

pub mod engine;
pub mod journal;
pub mod lease_file;
pub mod replace_file;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod stored_state;

use serde::{Deserialize, Serialize};

use canal_core::{Entry, Outcome, Revision};

/// An entry at its place in the log, with its outcomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The place.
    #[serde(rename = "r")]
    pub revision: Revision,
    /// The entry.
    #[serde(rename = "e")]
    pub entry: Entry,
    /// Its outcomes.
    #[serde(default, rename = "o", skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Outcome>,
}

/// A borrowed [`Record`] for writing.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RecordRef<'a> {
    /// The place.
    #[serde(rename = "r")]
    pub revision: Revision,
    /// The entry.
    #[serde(rename = "e")]
    pub entry: &'a Entry,
    /// Its outcomes.
    #[serde(rename = "o", skip_serializing_if = "<[_]>::is_empty")]
    pub outcomes: &'a [Outcome],
}

// The engine contract names this crate both from outside and from within.
#[cfg(test)]
extern crate self as canal_log;
/// The contract of every engine, including the simulated one.
#[cfg(test)]
#[path = "../../../tests/engine_contract/mod.rs"]
mod engine_contract;
/// Keeps the tests apart from the user's environment and processes.
#[cfg(test)]
#[path = "../../../tests/fixtures/isolation.rs"]
mod isolation;
