//! Reports usage errors as one line and a hint, instead of clap's paragraphs.
//!
//! Invariant: canal never prints clap's own text, whatever the error is.
//!
//! The hints cover words that are right in other programs or other subcommands, and typing errors.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory};

use crate::cli::arguments::definition::Cli;
use crate::cli::arguments::keys_and_sizes::sized_key;
use crate::cli::arguments::parse_value::number;
use crate::cli::{Failed, Verbosity, cut, stderr};
use crate::run::SUCCESS;

/// The most columns of a word of the user in a message or hint.
const WORD_COLUMNS: usize = 40;

/// Reports what clap did not accept as a command line. Help and version are printed and are a
/// success; everything else is a usage error (125).
pub(crate) fn report(error: &clap::Error, words: &[OsString]) -> u8 {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return print(error);
    }
    if silent(words.iter().map(OsString::as_os_str)) {
        Verbosity::Silent.apply();
    }
    // An argument of the command need not be UTF-8.
    let words = words.iter().skip(1).filter_map(|word| word.to_str().map(str::to_owned));
    stderr::failure(&explain(error, words))
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
    let text = error.render().ansi().to_string();
    match anstream::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            stderr::failure(&Failed::new(format!("cannot write the help: {error}")))
        }
        _ => SUCCESS,
    }
}

fn explain(error: &clap::Error, words: impl Iterator<Item = String>) -> Failed {
    let definition = Cli::command();
    let known = |word: &String| definition.find_subcommand(word).is_some_and(|c| !c.is_hide_set());
    let mut words = words.take_while(|word| word != "--");
    // The subcommand, if the user named one, and the first word after it that is not an option.
    let (verb, operand) = (words.find(known), words.find(|word| !word.starts_with('-')));
    let (verb, operand) = (verb.as_deref(), operand.as_deref());
    let hint = from_elsewhere(error, verb.unwrap_or_default(), operand);
    let hint = hint.or_else(|| did_you_mean(error)).unwrap_or_else(|| match verb {
        Some(verb) => format!("see `canal help {verb}`"),
        None => "see `canal help`".to_owned(),
    });
    Failed::new(message(error)).hint(hint)
}

fn message(error: &clap::Error) -> String {
    let arg = name_of(&text(error, ContextKind::InvalidArg));
    let value = text(error, ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::UnknownArgument if arg.starts_with('-') => format!("unknown option `{arg}`"),
        ErrorKind::UnknownArgument => format!("extra argument `{arg}`"),
        ErrorKind::InvalidSubcommand => {
            let word = text(error, ContextKind::InvalidSubcommand);
            format!("unknown command `{}`", cut(&word, WORD_COLUMNS))
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{arg} needs a value"),
        ErrorKind::InvalidValue => {
            let known = text(error, ContextKind::ValidValue);
            format!("{arg}: `{}` is not one of {known}", cut(&value, WORD_COLUMNS))
        }
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string);
            let shown = if value.is_empty() { "''".to_owned() } else { cut(&value, WORD_COLUMNS) };
            format!("{arg} {shown}: {}", why.unwrap_or_default())
        }
        ErrorKind::TooManyValues => format!("{arg} takes no value"),
        ErrorKind::ArgumentConflict => {
            let prior = name_of(&text(error, ContextKind::PriorArg));
            match prior.is_empty() || prior == arg {
                true => format!("{arg} is given twice"),
                false => format!("{arg} and {prior} cannot be given together"),
            }
        }
        ErrorKind::MissingRequiredArgument => format!("{arg} is missing"),
        ErrorKind::InvalidUtf8 => {
            "only a command and its arguments may contain invalid UTF-8".into()
        }
        // Kinds that this command line does not cause.
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

/// `--per <P>` is `--per`, `<SHELL>` is SHELL, and `[KEY|%N]` is KEY.
fn name_of(shown: &str) -> String {
    let first = shown.split([' ', '=']).next().unwrap_or_default();
    let operand = shown.split('|').next().unwrap_or_default();
    let first = if shown.starts_with('-') { first } else { operand };
    first.trim_matches(['<', '>', '[', ']', '.']).to_owned()
}

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

/// The hint for words that are right in other programs, or in other subcommands of canal.
fn from_elsewhere(error: &clap::Error, verb: &str, operand: Option<&str>) -> Option<String> {
    let arg = text(error, ContextKind::InvalidArg);
    let value = text(error, ContextKind::InvalidValue);
    let (option, word) = (name_of(&arg), cut(&arg, WORD_COLUMNS));
    let begins_option = arg.starts_with('-');
    Some(match (error.kind(), verb) {
        (ErrorKind::UnknownArgument, "run" | "acquire") if begins_option => {
            let foreign = FOREIGN.iter().find(|(options, _)| options.contains(&&*option));
            foreign?.1.to_owned()
        }
        (ErrorKind::UnknownArgument, "")
            if begins_option && takes("run", |arg| is_option(arg, &option)) =>
        {
            format!("write `run` before the option: `canal run {option} …`")
        }
        (ErrorKind::UnknownArgument, verb)
            if matches!(&*option, "-k" | "--key") && takes(verb, is_key) =>
        {
            format!("give the key without an option: `canal {verb} KEY`")
        }
        (ErrorKind::UnknownArgument, _) if begins_option => return None,
        (ErrorKind::UnknownArgument, "acquire") if sized_key(&arg).is_ok() => {
            format!("add it with `--key {word}`; canal takes all keys together")
        }
        (ErrorKind::UnknownArgument, "resize") => {
            let key = cut(operand?, WORD_COLUMNS);
            format!("run `canal resize {key} {}`", size(&arg)?)
        }
        (ErrorKind::UnknownArgument, "release") => {
            "`canal release` takes one key; release everything with --all".to_owned()
        }
        (ErrorKind::ValueValidation, _)
            if arg.starts_with("--slots") && value == "0" || value.ends_with("=0") =>
        {
            NONE_HINT.to_owned()
        }
        (ErrorKind::ValueValidation, verb)
            if value.contains(['=', ':'])
                && (arg.starts_with("--key ") || matches!(verb, "acquire" | "test")) =>
        {
            LITERAL_HINT.to_owned()
        }
        _ => return None,
    })
}

/// Whether a subcommand has an argument like this.
fn takes(verb: &str, is_meant: impl Fn(&Arg) -> bool) -> bool {
    Cli::command().find_subcommand(verb).is_some_and(|verb| verb.get_arguments().any(is_meant))
}

fn is_option(arg: &Arg, option: &str) -> bool {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    [short, long].iter().flatten().any(|name| name == option)
}

/// Whether the argument is a key without an option.
fn is_key(arg: &Arg) -> bool {
    let mut names = arg.get_value_names().into_iter().flatten();
    arg.is_positional() && names.any(|name| name.contains("KEY") || name == "NAME")
}

/// The command that was probably meant by `canal resize KEY=VIEW`, which does not set a size.
pub(crate) fn with_its_size(key: &str) -> Option<String> {
    let (key, view) = key.rsplit_once('=')?;
    Some(format!("run `canal resize {} {}`", cut(key, WORD_COLUMNS), size(view)?))
}

/// The options for a size: `4` is `--slots 4`, `3x2` is `--per 3 --buckets 2`.
fn size(word: &str) -> Option<String> {
    let number = |text: &str| number(text).ok();
    let Some((per, buckets)) = word.split_once('x') else {
        return Some(format!("--slots {}", number(word)?));
    };
    Some(format!("--per {} --buckets {}", number(per)?, number(buckets)?))
}

/// The hint for a typing error.
fn did_you_mean(error: &clap::Error) -> Option<String> {
    use ContextKind as Kind;
    let verb = Cli::command();
    // A subcommand for internal use is no suggestion.
    let is_hidden = |text: &str| verb.find_subcommand(text).is_some_and(Command::is_hide_set);
    let pairs = [
        (Kind::SuggestedArg, Kind::InvalidArg),
        (Kind::SuggestedSubcommand, Kind::InvalidSubcommand),
        (Kind::SuggestedValue, Kind::InvalidValue),
    ];
    let nearest = pairs.into_iter().find_map(|(suggested, wrong)| {
        let (suggested, wrong) = (text(error, suggested), text(error, wrong));
        // clap may suggest several subcommands.
        let suggested = suggested.split(", ").filter(|text| !text.is_empty() && !is_hidden(text));
        let near = suggested.filter_map(|text| Some((distance(text, &wrong)?, name_of(text))));
        near.min_by_key(|(distance, _)| *distance)
    });
    nearest.map(|(_, name)| format!("did you mean `{name}`?"))
}

/// How far one word is from the other; `None` if it is no typing error for it. clap takes
/// `--frobnicate` for `--on`.
fn distance(suggested: &str, wrong: &str) -> Option<usize> {
    let [suggested, wrong] = [suggested, wrong].map(|word| word.trim_start_matches('-'));
    let distance = strsim::osa_distance(suggested, wrong);
    (2 * distance <= suggested.len().max(wrong.len())).then_some(distance)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proptest::prelude::*;
    use proptest::sample::select;

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
            (
                &["run", "-E", "256"],
                "--conflict-exit-code 256: an exit code must be between 0 and 255",
            ),
            (&["run", "-k", "/a"], "--key /a: a key cannot begin with `/`; use `a`"),
            (&["run", "-n", "-w", "3"], "--no-wait and --wait cannot be given together"),
            (&["run", "-n", "-n"], "--no-wait is given twice"),
            (
                &["run", "--signal", "NOPE"],
                "--signal NOPE: not a signal; write one like TERM, SIGTERM or 15",
            ),
            (&["acquire", "--pid", "0"], "--pid 0: there is no process 0"),
            (&["acquire", "--handle", "x"], "unknown option `--handle`"),
            (&["release", "a", "b"], "extra argument `b`"),
            (
                &["status", "a//b"],
                "KEY a//b: a key cannot have an empty component; `//` is at byte 1",
            ),
            (&["status", "--json=1"], "--json takes no value"),
            (&["run", "--socket="], "--socket needs a value"),
            (&["help", "rum"], "unknown command `rum`"),
            (&["man", "a", "b"], "extra argument `b`"),
            (&["completions"], "SHELL is missing"),
            (&["completions", "csh"], "SHELL: `csh` is not one of bash, zsh, fish"),
            (
                &["resize", "x", "--forget", "--slots", "3"],
                "--forget and --slots cannot be given together",
            ),
            (&["renew", "x"], "extra argument `x`"),
            (
                &["acquire", "--ttl", "0.5"],
                "--ttl 0.5: a TTL must be at least 1s, to leave time for a renewal",
            ),
            (
                &["acquire", "--ttl", "31d"],
                "--ttl 31d: a TTL can be at most 30d; renew the lease to keep it longer",
            ),
            (
                &["acquire", "--ttl", "infinity"],
                "--ttl infinity: a lease must end at some point, so that another client can take the \
                 lock",
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

    const ALONE: &str = "use `--write KEY` to hold a lock exclusively, as flock -x does; if there are \
                         no readers, `--key KEY` is enough";

    #[test]
    fn hints_say_what_to_do() {
        for (args, hint) in [
            (
                &["run", "--timeout", "3"][..],
                "limit the wait for the lock with --wait DUR, or the run time of the command with \
                 --max-run DUR",
            ),
            (&["run", "--kei", "x"], "did you mean `--key`?"),
            (&["rum"], "did you mean `run`?"),
            (&["stauts"], "did you mean `status`?"),
            (&["-k", "x", "make"], "write `run` before the option: `canal run -k …`"),
            (&["lookot"], "see `canal help`"),
            (&["--no-start", "run", "--bogus"], "see `canal help run`"),
            (&["--bogus"], "see `canal help`"),
            (
                &["run", "-s", "-k", "x", "true"],
                "use `--read KEY` to share a lock with other readers, as flock -s does",
            ),
            (&["run", "-x", "/var/lock/x", "true"], ALONE),
            (&["acquire", "--exclusive", "x"], ALONE),
            (&["acquire", "-u", "x"], "release a lock with `canal release KEY`"),
            (
                &["run", "--nonblock", "-k", "x", "true"],
                "use `-n` or `--no-wait` to fail instead of waiting",
            ),
            (&["resize", "x", "4"], "run `canal resize x --slots 4`"),
            (&["resize", "x", "3x2"], "run `canal resize x --per 3 --buckets 2`"),
            (
                &["run", "-k", "fix=main", "true"],
                "give a key that contains `=` or `:` with `--key-literal KEY`",
            ),
            (&["test", "host:ssh"], "give a key that contains `=` or `:` with `--key-literal KEY`"),
            (&["resize", "x", "four"], "see `canal help resize`"),
            (&["acquire", "x", "y"], "add it with `--key y`; canal takes all keys together"),
            (&["release", "-k", "x"], "give the key without an option: `canal release KEY`"),
            (
                &["resize", "--key", "x", "-j", "4"],
                "give the key without an option: `canal resize KEY`",
            ),
            (&["kill", "-k", "x"], "give the key without an option: `canal kill KEY`"),
            (&["leader", "-k", "x"], "give the key without an option: `canal leader KEY`"),
            (&["history", "--key", "x"], "give the key without an option: `canal history KEY`"),
            (&["renew", "-k", "x"], "see `canal help renew`"),
            (
                &["release", "a", "b"],
                "`canal release` takes one key; release everything with --all",
            ),
        ] {
            assert_eq!(said(args).1, hint, "{args:?}");
        }
    }

    /// Words that may form a command line: subcommands, options of all kinds, good and bad values.
    fn word() -> impl Strategy<Value = &'static str> {
        let verbs =
            select(&["run", "acquire", "release", "renew", "status", "resize", "daemon"][..]);
        let others = select(&["completions", "man", "help", "complete", "rum", "-", "--"][..]);
        let options = select(
            &[
                "-k",
                "--key",
                "--read",
                "--write",
                "--per",
                "--buckets",
                "-j",
                "--slots",
                "--count",
                "-n",
                "--no-wait",
                "-w",
                "--wait",
                "-E",
                "--priority",
                "-c",
                "--max-run",
                "--signal",
                "--on-lost",
                "--pid",
                "--ttl",
                "--json",
                "--all",
                "--force",
                "--token",
                "--handle",
                "--watch",
                "--why",
                "--graph",
                "--forget",
                "--stop",
                "--replace",
                "--engine",
                "-q",
                "-v",
                "--socket",
                "--bogus",
                "-Z",
                "-s",
                "-nk",
                "--keyy",
            ][..],
        );
        let assigned = select(
            &["--json=1", "--key=", "--per=x", "--wait=soon", "--no-wait=", "--on-lost=x"][..],
        );
        let values =
            select(&["x", "a/b", "x=4", "x=0", "/x", "3", "0", "-1", "3x2", "10m", "bash"][..]);
        prop_oneof![3 => verbs, 1 => others, 4 => options, 1 => assigned, 4 => values]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8 * ProptestConfig::default().cases))]
        #[test]
        fn no_text_of_clap_reaches_a_user(words in proptest::collection::vec(word(), 0..6)) {
            let line = std::iter::once("canal").chain(words.iter().copied());
            if let Err(error) = Cli::try_parse_from(line)
                && !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
            {
                let failed = explain(&error, words.iter().map(ToString::to_string));
                let said = format!("{} {}", failed.message, failed.hint.unwrap_or_default());
                // Words from clap's messages and from the text below them.
                for of_clap in
                    ["<", "error:", "tip:", "sage:", "required", "expected", "invalid", "nformation"]
                {
                    prop_assert!(!said.contains(of_clap), "{:?}: {}", words, said);
                }
                prop_assert!(!said.contains('\n') && !failed.message.is_empty(), "{:?}: {}", words, said);
            }
        }
    }
}
