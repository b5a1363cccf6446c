//! Reports usage errors as one line and a hint, instead of clap's paragraphs.
//!
//! Invariant: canal never prints clap's own text, whatever the error is.

mod hint;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::arguments::definition::Cli;
use crate::cli::{Failed, Verbosity, cut};
use crate::run::SUCCESS;

pub(crate) use self::hint::with_its_size;

/// The most columns of a wrong value in a message.
const VALUE_COLUMNS: usize = 40;

/// Reports what clap did not accept as a command line. Help and version are printed and are a
/// success; everything else is a usage error (125).
pub(crate) fn report(error: &clap::Error, words: &[OsString]) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => print(error),
        _ => {
            let verbosity = if silent(words.iter().map(OsString::as_os_str)) {
                Verbosity::Silent
            } else {
                Verbosity::Normal
            };
            // An argument of the command need not be UTF-8.
            let words = words.iter().skip(1).filter_map(|word| word.to_str().map(str::to_owned));
            verbosity.failure(&explain(error, words))
        }
    }
}

/// Whether `-qq` precedes the error in the arguments.
fn silent<'a>(words: impl Iterator<Item = &'a OsStr>) -> bool {
    let understood = Cli::command().ignore_errors(true).try_get_matches_from(words);
    understood.is_ok_and(|matches| matches.get_count("quiet") > 1)
}

/// The error for `canal` without arguments.
pub(crate) fn nothing_to_do() -> Failed {
    Failed::new("no command given; use one such as run, acquire, release or status")
        .hint("see `canal help`, or try: canal run --key x -- echo hello")
}

/// A usage error of a subcommand, with a hint about its help unless there is a better one.
pub(crate) fn wrong(verb: &str, message: impl Into<String>) -> Failed {
    Failed::new(message).hint(format!("see `canal help {verb}`"))
}

fn print(error: &clap::Error) -> u8 {
    let text = error.render();
    let shown = match anstream::AutoStream::choice(&io::stdout()) {
        anstream::ColorChoice::Never => text.to_string(),
        _ => text.ansi().to_string(),
    };
    match io::stdout().lock().write_all(shown.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Verbosity::Normal.failure(&Failed::new(format!("cannot write the help: {error}")))
        }
        _ => SUCCESS,
    }
}

fn explain(error: &clap::Error, words: impl Iterator<Item = String>) -> Failed {
    let line = Line::of(words);
    Failed::new(message(error)).hint(hint::of(error, &line))
}

/// The command line that contains the error.
#[derive(Debug, Default)]
struct Line {
    /// The subcommand, if the user named one.
    verb: Option<String>,
    /// The words after the subcommand.
    rest: Vec<String>,
}

impl Line {
    fn of(words: impl Iterator<Item = String>) -> Self {
        let definition = Cli::command();
        let known =
            |word: &String| definition.find_subcommand(word).is_some_and(|c| !c.is_hide_set());
        let mut words = words.take_while(|word| word != "--");
        let verb = words.find(known);
        Self { verb, rest: words.collect() }
    }

    /// The first word after the subcommand that is not an option.
    fn operand(&self) -> Option<&str> {
        self.rest.iter().map(String::as_str).find(|word| !word.starts_with('-'))
    }
}

fn message(error: &clap::Error) -> String {
    let arg = name_of(&text(error, ContextKind::InvalidArg));
    let value = text(error, ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::UnknownArgument if arg.starts_with('-') => format!("unknown option `{arg}`"),
        ErrorKind::UnknownArgument => format!("extra argument `{arg}`"),
        ErrorKind::InvalidSubcommand => {
            let word = text(error, ContextKind::InvalidSubcommand);
            format!("unknown command `{}`", cut(&word, VALUE_COLUMNS))
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{arg} needs a value"),
        ErrorKind::InvalidValue => {
            let known = text(error, ContextKind::ValidValue);
            format!("{arg}: `{}` is not one of {known}", cut(&value, VALUE_COLUMNS))
        }
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string);
            format!("{arg} {}: {}", shown(&value), why.unwrap_or_default())
        }
        ErrorKind::TooManyValues => format!("{arg} takes no value"),
        ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues | ErrorKind::NoEquals => {
            format!("{arg} needs a value")
        }
        ErrorKind::ArgumentConflict => {
            let prior = name_of(&text(error, ContextKind::PriorArg));
            if prior.is_empty() || prior == arg {
                format!("{arg} is given twice")
            } else {
                format!("{arg} and {prior} cannot be given together")
            }
        }
        ErrorKind::MissingRequiredArgument => format!("{arg} is missing"),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "a command is missing".to_owned()
        }
        ErrorKind::InvalidUtf8 => {
            "only a command and its arguments may contain invalid UTF-8".into()
        }
        // I/O errors while help is formatted, and kinds of later versions of clap.
        _ => "cannot parse the command line".to_owned(),
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    }
}

/// A value for a message: visible, and cut if it is too long.
fn shown(value: &str) -> String {
    if value.is_empty() { "''".to_owned() } else { cut(value, VALUE_COLUMNS) }
}

/// `--per <P>` is `--per`, `<SHELL>` is SHELL, and `[KEY|%N]` is KEY.
fn name_of(shown: &str) -> String {
    let first = shown.split([' ', '=']).next().unwrap_or_default();
    let operand = shown.split('|').next().unwrap_or_default();
    let first = if shown.starts_with('-') { first } else { operand };
    first.trim_matches(['<', '>', '[', ']', '.']).to_owned()
}

#[cfg(test)]
mod tests;
