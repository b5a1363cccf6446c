//! The keepers of the ordered entries from which the table is computed.

pub mod disk;
pub mod engine;
pub mod journal;
pub mod lease_file;
pub mod replace_file;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod stored_state;

use serde::{Deserialize, Serialize};

use canal_core::{Entry, Outcome, Revision};

/// An entry at its place in the log, with its outcomes; both may be borrowed for writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "E: Serialize, O: Serialize + AsRef<[Outcome]>"))]
pub struct Record<E = Entry, O = Vec<Outcome>> {
    /// The place.
    #[serde(rename = "r")]
    pub revision: Revision,
    /// The entry.
    #[serde(rename = "e")]
    pub entry: E,
    /// Its outcomes.
    #[serde(default, rename = "o", skip_serializing_if = "is_empty")]
    pub outcomes: O,
}

fn is_empty(outcomes: &impl AsRef<[Outcome]>) -> bool {
    outcomes.as_ref().is_empty()
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
