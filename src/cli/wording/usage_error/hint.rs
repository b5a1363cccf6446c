//! Hints for usage errors: words that are right in other programs or other subcommands, and typing
//! errors.

use clap::CommandFactory;
use clap::error::{ContextKind, ErrorKind};

use super::{Line, name_of, text};
use crate::cli::arguments::definition::Cli;
use crate::cli::arguments::lock::KeyArg;
use crate::cli::arguments::number::number;
use crate::cli::cut;

/// The most columns of a word that a hint repeats.
const WORD_COLUMNS: usize = 40;

/// The hint for a request with 0 slots. The caller probably means to pause the key.
const NONE_HINT: &str = "to stop all grants until `--resume`, run `canal resize KEY --pause`";

/// The hint for a key that is followed by neither a size nor a count.
const LITERAL_HINT: &str = "give a key that contains `=` or `:` with `--key-literal KEY`";

/// Options of flock(1), timeout(1) and similar programs, and their counterparts in canal. canal
/// does not accept them as synonyms: for flock's `-s` and `-x`, only the caller knows whether
/// `--key` or `--write` is meant.
const FOREIGN: &[(&[&str], &str)] = &[
    (&["-s", "--shared"], "use `--read KEY` to share a lock with other readers, as flock -s does"),
    (
        &["-x", "-e", "--exclusive"],
        "use `--write KEY` to hold a lock exclusively, as flock -x does; if there are no readers, \
         `--key KEY` is enough",
    ),
    (&["-u", "--unlock"], "release a lock with `canal release KEY`"),
    (
        &["-o", "--close", "-F", "--no-fork"],
        "leave it out: canal becomes the command, which inherits no lock descriptor",
    ),
    (&["--nonblock", "--nb"], "use `-n` or `--no-wait` to fail instead of waiting"),
    (
        &["--timeout", "-t"],
        "limit the wait for the lock with --wait DUR, or the run time of the command with \
         --max-run DUR",
    ),
];

/// The hint for an error.
pub(super) fn of(error: &clap::Error, line: &Line) -> String {
    let hint = from_elsewhere(error, line).or_else(|| did_you_mean(error));
    hint.unwrap_or_else(|| match &line.verb {
        Some(verb) => format!("see `canal help {verb}`"),
        None => "see `canal help`".to_owned(),
    })
}

/// The hint for words that are right in other programs, or in other subcommands of canal.
fn from_elsewhere(error: &clap::Error, line: &Line) -> Option<String> {
    let arg = text(error, ContextKind::InvalidArg);
    let value = text(error, ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::UnknownArgument if arg.starts_with('-') => unknown_option(&name_of(&arg), line),
        ErrorKind::UnknownArgument => extra_operand(&arg, line),
        ErrorKind::ValueValidation => wrong_value(&arg, &value, line),
        _ => None,
    }
}

fn unknown_option(option: &str, line: &Line) -> Option<String> {
    match line.verb.as_deref()? {
        "run" | "acquire" => {
            let foreign = FOREIGN.iter().find(|(options, _)| options.contains(&option));
            foreign.map(|(_, hint)| (*hint).to_owned())
        }
        verb @ ("release" | "resize" | "status") if matches!(option, "-k" | "--key") => {
            Some(format!("give the key without an option: `canal {verb} KEY`"))
        }
        _ => None,
    }
}

fn extra_operand(word: &str, line: &Line) -> Option<String> {
    let shown = cut(word, WORD_COLUMNS);
    match line.verb.as_deref()? {
        "acquire" if word.parse::<KeyArg>().is_ok() => {
            Some(format!("add it with `--key {shown}`; canal takes all keys together"))
        }
        "resize" => {
            let key = cut(line.operand()?, WORD_COLUMNS);
            Some(format!("run `canal resize {key} {}`", size(word)?))
        }
        "release" => {
            Some("`canal release` takes one key; release everything with --all".to_owned())
        }
        _ => None,
    }
}

fn wrong_value(arg: &str, value: &str, line: &Line) -> Option<String> {
    let none = arg.starts_with("--slots") && value == "0";
    let sized =
        arg.starts_with("--key ") || matches!(line.verb.as_deref(), Some("acquire" | "test"));
    if none || value.ends_with("=0") {
        return Some(NONE_HINT.to_owned());
    }
    (sized && value.contains(['=', ':'])).then(|| LITERAL_HINT.to_owned())
}

/// The command that was probably meant by `canal resize KEY=VIEW`, which does not set a size.
pub(crate) fn with_its_size(key: &str) -> Option<String> {
    let (key, view) = key.rsplit_once('=')?;
    Some(format!("run `canal resize {} {}`", cut(key, WORD_COLUMNS), size(view)?))
}

/// The options for a size: `4` is `--slots 4`, `3x2` is `--per 3 --buckets 2`.
fn size(word: &str) -> Option<String> {
    match word.split_once('x') {
        Some((per, buckets)) => {
            Some(format!("--per {} --buckets {}", number(per).ok()?, number(buckets).ok()?))
        }
        None => Some(format!("--slots {}", number(word).ok()?)),
    }
}

/// The hint for a typing error.
fn did_you_mean(error: &clap::Error) -> Option<String> {
    use ContextKind as Kind;
    [
        (Kind::SuggestedArg, Kind::InvalidArg),
        (Kind::SuggestedSubcommand, Kind::InvalidSubcommand),
        (Kind::SuggestedValue, Kind::InvalidValue),
    ]
    .into_iter()
    .map(|(suggested, wrong)| (text(error, suggested), text(error, wrong)))
    .find(|(text, wrong)| !text.is_empty() && is_near(text, wrong) && !is_hidden(text))
    .map(|(text, _)| format!("did you mean `{}`?", name_of(&text)))
}

/// Whether one word may be a typing error for the other. clap takes `--frobnicate` for `--on`.
fn is_near(suggested: &str, wrong: &str) -> bool {
    let [suggested, wrong] = [suggested, wrong].map(|word| word.trim_start_matches('-'));
    2 * strsim::osa_distance(suggested, wrong) <= suggested.len().max(wrong.len())
}

/// Whether a word is a subcommand for canal's internal use.
fn is_hidden(word: &str) -> bool {
    Cli::command().find_subcommand(word).is_some_and(clap::Command::is_hide_set)
}
