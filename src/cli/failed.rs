//! Describes why a command failed.

use crate::daemon::StartError;
use crate::run::{NotRun, OwnCode};

/// Why a command ends early: an exit code, a one-line message, and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// The exit code.
    pub(crate) code: u8,
    /// The message: lower case, one line.
    pub(crate) message: String,
    /// Advice for the user.
    pub(crate) hint: Option<String>,
    /// Whether to print nothing (further).
    pub(crate) silent: bool,
}

/// The result of a step that can end the command.
pub(crate) type Result<T = (), E = Failed> = std::result::Result<T, E>;

impl Failed {
    /// A failure of canal itself.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::with_code(OwnCode::Failed.number(), message)
    }

    /// A failure with this exit code.
    pub(crate) fn with_code(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, silent: false }
    }

    /// A failure that prints nothing (further).
    pub(crate) fn silent(code: u8) -> Self {
        Self { code, message: String::new(), hint: None, silent: true }
    }

    /// Adds advice.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds advice, if there is any.
    #[must_use]
    pub(crate) fn hint_if(self, hint: Option<impl Into<String>>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }
}

impl From<NotRun> for Failed {
    fn from(not_run: NotRun) -> Self {
        Self::with_code(not_run.code.number(), not_run.to_string())
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        let hint = error.downcast_ref::<StartError>().map(|unusable| unusable.hint.as_ref());
        Self::new(format!("{error:#}")).hint_if(hint)
    }
}
