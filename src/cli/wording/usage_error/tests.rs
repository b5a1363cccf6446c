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
        (&["run", "-E", "256"], "--conflict-exit-code 256: an exit code must be between 0 and 255"),
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
        (&["status", "a//b"], "KEY a//b: a key cannot have an empty component; `//` is at byte 1"),
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
        (&["acquire", "--ttl", "60s", "--pid", "7"], "--ttl and --pid cannot be given together"),
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
        (&["release", "a", "b"], "`canal release` takes one key; release everything with --all"),
    ] {
        assert_eq!(said(args).1, hint, "{args:?}");
    }
}

/// Words that may form a command line: subcommands, options of all kinds, good and bad values.
fn word() -> impl Strategy<Value = &'static str> {
    let verbs = select(&["run", "acquire", "release", "renew", "status", "resize", "daemon"][..]);
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
    let assigned =
        select(&["--json=1", "--key=", "--per=x", "--wait=soon", "--no-wait=", "--on-lost=x"][..]);
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
