//! Options for how long to wait, and for the exit code when the wait is over.

use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};

use super::duration::{self, Length};
use super::number::{exit_code, number, priority};
use super::word::one_of;
use crate::protocol::{GROUP_BYTES_MAX, Superseded};
use crate::run::OwnCode;
use crate::safe_text::is_unsafe;

/// The options for the wait.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "How to wait")]
pub(crate) struct WaitArgs {
    /// Exit with 75 at once if the lock is not free
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait at most DUR, such as 10, 500ms or 1h30m [default: infinity]
    ///
    /// Then exit with 75. A number without a unit is in seconds; 0 means do not wait.
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::parse, allow_negative_numbers = true)]
    pub(crate) wait: Option<Length>,
    /// Exit with N instead of 75; 0 skips quietly
    ///
    /// This applies when the lock is busy or paused, when the wait times out, when too many
    /// requests are already waiting (--max-waiting), and when a newer request supersedes this one.
    #[arg(short = 'E', long, value_name = "N", value_parser = exit_code, allow_negative_numbers = true)]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Go ahead of waiters with a lower priority [default: 0]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = priority, allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// Exit with 75 if N or more requests are already waiting
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = number, allow_negative_numbers = true)]
    pub(crate) max_waiting: Option<u64>,
    /// Withdraw your older requests for the same keys, or in the same --group
    ///
    /// The older requests exit with 75. With `running`, canal also ends the commands that hold the
    /// lock.
    #[arg(long, hide_short_help = true, value_name = "WHICH", value_parser = superseded())]
    pub(crate) supersede: Option<Superseded>,
    /// The group in which --supersede looks for older requests
    #[arg(long, hide_short_help = true, value_name = "NAME", value_parser = group)]
    pub(crate) group: Option<String>,
    /// How to show progress while waiting [default: auto]
    #[arg(long, hide_short_help = true, value_name = "HOW", value_enum)]
    pub(crate) progress: Option<ProgressArg>,
    /// Keep waiting even if nothing reads stdout and stderr
    #[arg(long, hide_short_help = true)]
    pub(crate) unattended: bool,
}

/// The older requests that --supersede names.
fn superseded() -> impl TypedValueParser<Value = Superseded> {
    let running = "Requests that are still waiting, and commands that are running";
    one_of([
        ("waiting", "Requests that are still waiting", Superseded::Waiting),
        ("running", running, Superseded::Running),
    ])
}

/// The ways to show a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressArg {
    /// A status line on a terminal, log lines elsewhere
    #[default]
    Auto,
    /// A status line on a terminal, nothing elsewhere
    Tty,
    /// Log lines, even on a terminal
    Log,
    /// Nothing
    None,
}

/// Whether a request keeps waiting when stdout and stderr have no reader left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// The request is given up.
    Needed,
    /// The request keeps waiting.
    NotNeeded,
}

impl WaitArgs {
    /// Whether the wait needs a reader for what canal prints.
    pub(crate) fn readers(&self) -> Readers {
        if self.unattended { Readers::NotNeeded } else { Readers::Needed }
    }

    /// The wait in the form of the protocol: 0 means not to wait, `None` means without end.
    pub(crate) fn wait_ms(&self) -> Option<u64> {
        match self.no_wait {
            true => Some(0),
            false => self.wait.and_then(Length::finite).map(duration::millis),
        }
    }

    /// The exit code if the lock is busy or the wait is over. It is not used for a deadlock, which
    /// a script must not take for work that is done elsewhere.
    pub(crate) fn conflict_code(&self) -> u8 {
        self.conflict_exit_code.unwrap_or(OwnCode::NotAcquired.number())
    }
}

/// The name of a group.
fn group(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a group name cannot be empty".to_owned()),
        bytes if bytes > GROUP_BYTES_MAX => Err(format!(
            "a group name can have at most {GROUP_BYTES_MAX} bytes; this one has {bytes}"
        )),
        _ if text.chars().any(is_unsafe) => {
            Err("a group name cannot contain control characters".to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}
