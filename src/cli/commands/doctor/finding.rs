//! What was found about a thing.

use serde::Serialize;

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// As it should be.
    Fine,
    /// Good to know; nothing has to be done.
    Note,
    /// Something has to be done.
    Problem,
}

/// What was found about a thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The thing: `socket`, `disk` …
    pub(super) about: &'static str,
    pub(super) level: Level,
    pub(super) message: String,
    /// What to do.
    pub(super) hint: Option<String>,
}

impl Finding {
    pub(super) fn fine(about: &'static str, message: impl Into<String>) -> Self {
        Self { about, level: Level::Fine, message: message.into(), hint: None }
    }

    pub(super) fn note(about: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Note, ..Self::fine(about, message) }
    }

    /// A note with what can be done about it.
    pub(super) fn advice(
        about: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { hint: Some(hint.into()), ..Self::note(about, message) }
    }

    pub(super) fn problem(
        about: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { level: Level::Problem, ..Self::advice(about, message, hint) }
    }
}
