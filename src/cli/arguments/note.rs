//! The note of a request: what its caller wants people to know, such as the address of a CI run.

use std::ffi::{OsStr, OsString};

use clap::Args;

use crate::cli::failed::Failed;
use crate::protocol::NOTE_BYTES_MAX;

/// Gives the note to commands that are started without the option.
const VARIABLE: &str = "CANAL_NOTE";

/// What to tell others.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "How to run")]
pub(crate) struct NoteArgs {
    /// Show TEXT to everyone who sees the lock [default: $CANAL_NOTE]
    ///
    /// A note, such as the URL of a CI run, has at most 512 bytes. Other users can read it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<OsString>,
}

impl NoteArgs {
    /// The note of a new request: that of the option, else of the environment.
    ///
    /// # Errors
    /// It is too long.
    pub(crate) fn of_request(&self) -> Result<Option<String>, Failed> {
        Ok(self.of_renewal()?.filter(|note| !note.is_empty()))
    }

    /// The note that a lease is to have from now on, empty for none; `None` if it keeps its own. An
    /// empty variable says nothing.
    ///
    /// # Errors
    /// It is too long.
    pub(crate) fn of_renewal(&self) -> Result<Option<String>, Failed> {
        if let Some(note) = &self.note {
            return checked(note, "--note").map(Some);
        }
        let inherited = std::env::var_os(VARIABLE).filter(|note| !note.is_empty());
        inherited.map(|note| checked(&note, VARIABLE)).transpose()
    }
}

fn checked(note: &OsStr, source: &str) -> Result<String, Failed> {
    let note = note.to_string_lossy();
    match note.len() {
        0..=NOTE_BYTES_MAX => Ok(note.into_owned()),
        bytes => Err(Failed::new(format!(
            "{source} has {bytes} bytes; a note has at most {NOTE_BYTES_MAX}"
        ))
        .hint("put the details where a link in the note leads")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(note: &str) -> NoteArgs {
        NoteArgs { note: Some(note.into()) }
    }

    #[test]
    fn a_note_is_taken_as_it_is_up_to_a_bound() {
        assert_eq!(given("run 7").of_request().unwrap().as_deref(), Some("run 7"));
        let longest = "é".repeat(NOTE_BYTES_MAX / 2);
        assert_eq!(given(&longest).of_request().unwrap(), Some(longest.clone()));
        let failed = given(&(longest + "x")).of_request().unwrap_err();
        assert_eq!(failed.message, "--note has 513 bytes; a note has at most 512");
        assert!(failed.hint.is_some());
    }

    #[test]
    fn an_empty_note_is_none_for_a_request_and_removes_that_of_a_lease() {
        assert_eq!(given("").of_request().unwrap(), None);
        assert_eq!(given("").of_renewal().unwrap().as_deref(), Some(""));
    }
}
