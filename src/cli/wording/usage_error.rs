//! Usage errors: one line and a hint, instead of clap's paragraphs.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::arguments::definition::Cli;
use crate::cli::failed::Failed;
use crate::cli::output::sanitize::cut;
use crate::cli::output::stderr::Verbosity;
use crate::run::SUCCESS;

/// The most columns of a wrong value in a message.
const VALUE_COLUMNS: usize = 40;

/// For a request with 0 slots, by which the caller probably means to pause the key.
const NONE_HINT: &str = "`canal resize KEY --pause` lets nobody have the lock until `--resume`";

/// Answers what clap did not take for a command line: help and version are printed and are a
/// success, everything else is a usage error (125).
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
            explain(error, words).report(verbosity)
        }
    }
}

/// Whether `-qq` stands before the error in the arguments.
fn silent<'a>(words: impl Iterator<Item = &'a OsStr>) -> bool {
    let understood = Cli::command().ignore_errors(true).try_get_matches_from(words);
    understood.is_ok_and(|matches| matches.get_count("quiet") > 1)
}

/// `canal` alone.
pub(crate) fn nothing_to_do() -> Failed {
    Failed::new("say what to do: run, acquire, renew, release, status, resize or daemon")
        .hint("`canal help` explains them; a first try: canal run --key x -- echo hello")
}

/// A usage error of a subcommand, with a hint to its help if it has no better one.
pub(crate) fn wrong(verb: &str, message: impl Into<String>) -> Failed {
    Failed::new(message).hint(format!("`canal help {verb}` explains the options"))
}

fn print(error: &clap::Error) -> u8 {
    let text = error.render();
    let shown = match anstream::AutoStream::choice(&io::stdout()) {
        anstream::ColorChoice::Never => text.to_string(),
        _ => text.ansi().to_string(),
    };
    match io::stdout().lock().write_all(shown.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Failed::new(format!("cannot write the help: {error}")).report(Verbosity::Normal)
        }
        _ => SUCCESS,
    }
}

fn explain(error: &clap::Error, words: impl Iterator<Item = String>) -> Failed {
    let verb = verb_of(words);
    let failed = Failed::new(message(error));
    match special_hint(error).or_else(|| suggestion(error)) {
        Some(hint) => failed.hint(hint),
        None => failed.hint(match verb {
            Some(verb) => format!("`canal help {verb}` explains the options"),
            None => "`canal help` explains the commands".to_owned(),
        }),
    }
}

fn message(error: &clap::Error) -> String {
    let arg = name_of(&text(error, ContextKind::InvalidArg));
    let value = text(error, ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::UnknownArgument if arg.starts_with('-') => format!("unknown option `{arg}`"),
        ErrorKind::UnknownArgument => format!("`{arg}` is one argument too many"),
        ErrorKind::InvalidSubcommand => {
            let word = text(error, ContextKind::InvalidSubcommand);
            format!("unknown command `{word}`")
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{arg} needs a value"),
        ErrorKind::InvalidValue => {
            let known = text(error, ContextKind::ValidValue);
            format!("{arg}: `{value}` is not one of {known}")
        }
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string);
            format!("{arg} {}: {}", shown(&value), why.unwrap_or_default())
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
        ErrorKind::InvalidUtf8 => "only a command and its arguments may be other than UTF-8".into(),
        _ => first_line(error),
    }
}

fn special_hint(error: &clap::Error) -> Option<String> {
    let arg = text(error, ContextKind::InvalidArg);
    let value = text(error, ContextKind::InvalidValue);
    let none = arg.starts_with("--slots") && value == "0";
    if error.kind() == ErrorKind::ValueValidation && (none || value.ends_with("=0")) {
        return Some(NONE_HINT.to_owned());
    }
    let timeout = arg == "--timeout" || arg.starts_with("--timeout=");
    (error.kind() == ErrorKind::UnknownArgument && timeout).then(|| {
        "--wait DUR bounds the wait for the lock, --max-run DUR how long the command runs"
            .to_owned()
    })
}

fn suggestion(error: &clap::Error) -> Option<String> {
    [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue]
        .into_iter()
        .map(|kind| text(error, kind))
        .find(|text| !text.is_empty())
        .map(|text| format!("did you mean `{}`?", name_of(&text)))
}

fn text(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    }
}

/// A value as it stands in a message: not invisible, and not of any length.
fn shown(value: &str) -> String {
    if value.is_empty() { "''".to_owned() } else { cut(value, VALUE_COLUMNS) }
}

/// `--per <P>` is `--per`, `<SHELL>` is SHELL.
fn name_of(shown: &str) -> String {
    let first = shown.split([' ', '=']).next().unwrap_or_default();
    let first = if shown.starts_with('-') { first } else { shown };
    first.trim_matches(['<', '>', '[', ']', '.']).to_owned()
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

fn verb_of(words: impl Iterator<Item = String>) -> Option<String> {
    let definition = Cli::command();
    let known = |word: &String| definition.find_subcommand(word).is_some_and(|c| !c.is_hide_set());
    words.take_while(|word| word != "--").find(known)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn said(args: &[&str]) -> (String, String) {
        let words = std::iter::once("canal").chain(args.iter().copied());
        let error = Cli::try_parse_from(words).unwrap_err();
        let failed = explain(&error, args.iter().map(ToString::to_string));
        assert_eq!(failed.code, 125);
        (failed.message, failed.hint.unwrap_or_default())
    }

    #[test]
    fn usage_errors_are_one_line_that_names_the_option() {
        for (args, message) in [
            (&["run", "--bogus"][..], "unknown option `--bogus`"),
            (&["run", "-Z"], "unknown option `-Z`"),
            (&["run", "--timeout", "3"], "unknown option `--timeout`"),
            (&["run", "--timeout=3"], "unknown option `--timeout`"),
            (&["rum"], "unknown command `rum`"),
            (&["run", "-k"], "--key needs a value"),
            (&["run", "--per", "0"], "--per 0: must be at least 1"),
            (&["run", "--buckets", "-1"], "--buckets -1: must not be negative"),
            (&["run", "-j", "-1"], "--slots -1: must be at least 1"),
            (&["run", "-w", "-5"], "--wait -5: must not be negative"),
            (&["run", "-E", "256"], "--conflict-exit-code 256: an exit code is 0 to 255"),
            (&["run", "-k", "/a"], "--key /a: a key does not begin with `/`; use `a`"),
            (&["run", "-n", "-w", "3"], "--no-wait and --wait cannot be given together"),
            (&["run", "-n", "-n"], "--no-wait is given twice"),
            (
                &["run", "--signal", "NOPE"],
                "--signal NOPE: not a signal; one looks like TERM, SIGTERM or 15",
            ),
            (&["acquire", "--pid", "0"], "--pid 0: there is no process 0"),
            (&["acquire", "--handle", "x"], "unknown option `--handle`"),
            (&["run", "--ttl", "5"], "unknown option `--ttl`"),
            (&["release", "a", "b"], "`b` is one argument too many"),
            (&["status", "a:b"], "KEY a:b: a key on the command line contains no `:`"),
            (&["completions"], "SHELL is missing"),
            (&["completions", "csh"], "SHELL: `csh` is not one of bash, zsh, fish"),
            (
                &["resize", "x", "--forget", "--slots", "3"],
                "--forget and --slots cannot be given together",
            ),
            (&["renew", "x"], "`x` is one argument too many"),
            (
                &["acquire", "--ttl", "0.5"],
                "--ttl 0.5: a lease lives for at least 1 second: it takes time to renew it",
            ),
            (
                &["acquire", "--ttl", "31d"],
                "--ttl 31d: a lease lives for at most 30 days: renew one that is needed for longer",
            ),
            (
                &["acquire", "--ttl", "infinity"],
                "--ttl infinity: a lease without end would never be taken over",
            ),
            (
                &["acquire", "--ttl", "60s", "--pid", "7"],
                "--ttl and --pid cannot be given together",
            ),
        ] {
            assert_eq!(said(args).0, message, "{args:?}");
        }
    }

    #[test]
    fn silence_counts_even_before_the_wrong_argument() {
        let asks = |line: &str| silent(line.split(' ').map(OsStr::new));
        for line in [
            "canal -qq run --bogus",
            "canal run -q -q --bogus",
            "canal run --quiet --quiet -k /x true",
            "canal -qq rum",
        ] {
            assert!(asks(line), "{line}");
        }
        for line in [
            "canal run --bogus",
            "canal -q run --bogus",
            "canal run --bogus -k x make -qq",
            "canal run -- x -qq",
        ] {
            assert!(!asks(line), "{line}");
        }
    }

    #[test]
    fn hints_say_what_to_do() {
        for (args, hint) in [
            (
                &["run", "--timeout", "3"][..],
                "--wait DUR bounds the wait for the lock, --max-run DUR how long the command runs",
            ),
            (&["run", "--kei", "x"], "did you mean `--key`?"),
            (&["rum"], "did you mean `run`?"),
            (&["--no-start", "run", "--bogus"], "`canal help run` explains the options"),
            (&["--bogus"], "`canal help` explains the commands"),
        ] {
            assert_eq!(said(args).1, hint, "{args:?}");
        }
    }
}
