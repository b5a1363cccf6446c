//! Writes messages to stderr. Every line that canal writes there goes through this module.
//!
//! Each line is one write, so that lines of several processes do not mix in a log. A closed or full
//! stderr does not change what canal does.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::cli::user_name::{self, rewrite};
use crate::daemon::StartError;
use crate::protocol::Failure;
use crate::run::{NotRun, OwnCode};

use super::sanitize::sanitize;

/// Why a command ends early: an exit code, a one-line message, and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// The exit code.
    pub(crate) code: u8,
    /// The message: lower case, one line. If it is empty, nothing (further) is printed.
    pub(crate) message: String,
    /// Advice for the user.
    pub(crate) hint: Option<String>,
    /// The answer of a daemon or of nodes that the message is from.
    pub(crate) failure: Option<Box<Failure>>,
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
        Self { code, message: message.into(), hint: None, failure: None }
    }

    /// A failure that prints nothing (further).
    pub(crate) fn silent(code: u8) -> Self {
        Self::with_code(code, "")
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
        Self { hint: hint.map(Into::into).or(self.hint), ..self }
    }
}

impl From<NotRun> for Failed {
    fn from(not_run: NotRun) -> Self {
        Self::with_code(OwnCode::of_not_run(&not_run).number(), not_run.to_string())
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        let hint = error.downcast_ref::<StartError>().map(|unusable| unusable.hint.as_ref());
        Self::new(format!("{error:#}")).hint_if(hint)
    }
}

/// How many messages to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    /// Nothing at all (`-qq`).
    Silent,
    /// Errors, except for a lock that was not free (`-q`).
    Quiet,
    /// Also that the lock was not free, the reason of a wait, and other notes.
    Normal,
    /// Also successes (`-v`).
    Verbose,
    /// Also how canal proceeded (`-vv`).
    Detailed,
}

/// The verbosity of this process.
static OF_PROCESS: AtomicU8 = AtomicU8::new(Verbosity::Normal as u8);

impl Verbosity {
    const ALL: [Self; 5] = [Self::Silent, Self::Quiet, Self::Normal, Self::Verbose, Self::Detailed];

    /// Makes this the verbosity of the process, and of those that it forks.
    pub(crate) fn apply(self) {
        OF_PROCESS.store(self as u8, Ordering::Relaxed);
    }
}

/// The verbosity of this process.
pub(crate) fn verbosity() -> Verbosity {
    Verbosity::ALL[usize::from(OF_PROCESS.load(Ordering::Relaxed))]
}

/// Whether the process prints what needs at least this verbosity.
pub(crate) fn shows(least: Verbosity) -> bool {
    verbosity() >= least
}

/// Prints why a command failed and what to do about it, and returns its exit code.
pub(crate) fn failure(failed: &Failed) -> u8 {
    if !failed.message.is_empty() {
        message(&failed.message);
        failed.hint.iter().for_each(|advice| hint(advice));
    }
    failed.code
}

/// Prints an error: `canal: …`.
pub(crate) fn message(text: &str) {
    print(Verbosity::Quiet, "canal: ", text);
}

/// Prints advice on an error: `hint: …`.
pub(crate) fn hint(text: &str) {
    print(Verbosity::Quiet, "hint: ", text);
}

/// Prints a message that is not a failure of canal, and that `-q` hides.
pub(crate) fn note(text: &str) {
    print(Verbosity::Normal, "canal: ", text);
}

/// Prints advice on a note.
pub(crate) fn advice(text: &str) {
    print(Verbosity::Normal, "hint: ", text);
}

/// Prints a line that only `-v` shows.
pub(crate) fn detail(text: &str) {
    print(Verbosity::Verbose, "canal: ", text);
}

/// Prints a line that only `-vv` shows.
pub(crate) fn fine_detail(text: &str) {
    print(Verbosity::Detailed, "canal: ", text);
}

fn print(least: Verbosity, lead: &str, text: &str) {
    if shows(least) {
        let text = without_numbers(text);
        let line = format!("{lead}{}\n", sanitize(&user_name::in_message(&text)));
        // An error here cannot be reported anywhere.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

/// Removes what std appends to the system's text (` (os error 13)`), which only helps programmers.
fn without_numbers(text: &str) -> String {
    rewrite(text, " (os error ", |_, after| {
        let (number, rest) = after.split_once(')')?;
        number.bytes().all(|b| b.is_ascii_digit()).then(|| rest.to_owned())
    })
}

/// Asks the question that follows the list of affected processes. Without a terminal, `--yes` is
/// required: `again` is the command with it. `undone` is the message that nothing was done.
pub(crate) fn confirm(question: &str, undone: &str, again: &str) -> Result {
    let hint = format!("run `{again}` to skip the question");
    if !shows(Verbosity::Normal) {
        return Err(Failed::new("-q hides the question: give --yes").hint(hint));
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failed::new(format!("{undone}: there is no terminal to ask on")).hint(hint));
    }
    // An error here cannot be reported anywhere. The cursor stays after the question.
    let line = format!("canal: {} [y/N] ", sanitize(question));
    let _ = io::stderr().lock().write_all(line.as_bytes());
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    if read.is_err() || !matches!(answer.trim(), "y" | "Y" | "yes") {
        return Err(Failed::new(undone));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_prints_more_than_the_one_before() {
        use Verbosity::{Detailed, Normal, Quiet, Silent, Verbose};
        assert!([Silent, Quiet, Normal, Verbose, Detailed].is_sorted_by(|one, next| one < next));
    }

    #[test]
    fn the_systems_words_lose_their_number_and_nothing_else() {
        for (text, words) in [
            ("x: Permission denied (os error 13)", "x: Permission denied"),
            ("a (os error 2): b (os error 5)!", "a: b!"),
            ("a (os error x) b", "a (os error x) b"),
            ("a (os error ", "a (os error "),
            ("plain", "plain"),
        ] {
            assert_eq!(without_numbers(text), words);
        }
    }
}
