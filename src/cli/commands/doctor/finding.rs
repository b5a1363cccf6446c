//! Defines the result of a check.

use serde::Serialize;

use crate::cli::user_name;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// Everything is in order.
    Fine,
    /// Worth knowing, but nothing needs to be done.
    Note,
    /// The user must do something.
    Problem,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The subject: `socket`, `disk` …
    pub(super) about: &'static str,
    pub(super) level: Level,
    pub(super) message: String,
    /// Advice for the user.
    pub(super) hint: Option<String>,
}

impl Finding {
    pub(super) fn fine(about: &'static str, message: impl Into<String>) -> Self {
        Self { about, level: Level::Fine, message: message.into(), hint: None }
    }

    pub(super) fn note(about: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Note, ..Self::fine(about, message) }
    }

    /// A note with advice.
    pub(super) fn advice(
        about: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let (message, hint) = (message.into(), hint.into());
        let hint = Some(user_name::in_message(&hint));
        Self { hint, ..Self::note(about, user_name::in_message(&message)) }
    }

    pub(super) fn problem(
        about: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { level: Level::Problem, ..Self::advice(about, message, hint) }
    }
}
