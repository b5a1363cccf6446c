//! Reads ordinary `canal run` command lines without clap, whose definition takes as long to build
//! as everything else that canal does before the command.
//!
//! Invariant: clap would read the same from these words. Unusual options and every mistake are left
//! to clap.

use std::ffi::OsStr;
use std::mem::replace;
use std::os::unix::ffi::OsStrExt;

use super::definition::{Global, JobserverArg, RunArgs};
use super::keys_and_sizes::{literal, plain_key, sized_key, slots};
use super::parse_value::{exit_code, length, number, positive, priority};
use super::request::RequestArgs;

/// Reads `canal run …`; returns `None` to leave the line to clap.
pub(crate) fn read<'a>(words: impl Iterator<Item = &'a OsStr>) -> Option<(Global, RunArgs)> {
    let mut words = words.skip(1);
    if words.next()? != "run" {
        return None;
    }
    let (mut global, mut run) = (Global::default(), RunArgs::default());
    loop {
        let word = words.next()?;
        let (name, value) = match word.as_bytes() {
            b"--" => break,
            [b'-', b'-', long @ ..] => match long.iter().position(|&byte| byte == b'=') {
                Some(at) => (&long[..at], Some(&long[at + 1..])),
                None => (long, None),
            },
            // clap takes a dash alone as an operand, though a strange one. An equals sign after a
            // letter belongs to the option.
            b"-" | [b'-', _, b'=', ..] => return None,
            [b'-', letter, value @ ..] => (long(*letter)?, (!value.is_empty()).then_some(value)),
            _ => {
                run.command.push(word.to_owned());
                break;
            }
        };
        option(&mut global, &mut run, name, value.map(OsStr::from_bytes), &mut words)?;
    }
    run.command.extend(words.map(OsStr::to_owned));
    let contradicts = run.asked.wait.no_wait && run.asked.wait.wait.is_some();
    (!contradicts && !run.command.is_empty()).then_some((global, run))
}

/// The long form of a one-letter option.
fn long(letter: u8) -> Option<&'static [u8]> {
    Some(match letter {
        b'n' => b"no-wait",
        b'q' => b"quiet",
        b'k' => b"key",
        b'j' => b"slots",
        b'w' => b"wait",
        b'E' => b"conflict-exit-code",
        _ => return None,
    })
}

/// Reads one option. `value` is what the same word contains, and `rest` are the words after it.
fn option<'a>(
    global: &mut Global,
    run: &mut RunArgs,
    name: &[u8],
    value: Option<&'a OsStr>,
    rest: &mut impl Iterator<Item = &'a OsStr>,
) -> Option<()> {
    let RunArgs { asked: RequestArgs { lock, session, wait, note }, how, .. } = run;
    let flag = |is_first: bool| (is_first && value.is_none()).then_some(());
    match name {
        b"no-wait" => return flag(!replace(&mut wait.no_wait, true)),
        b"new-session" => return flag(!replace(&mut session.new_session, true)),
        b"with-children" => return flag(!replace(&mut how.with_children, true)),
        b"unattended" => return flag(!replace(&mut wait.unattended, true)),
        b"no-start" => return flag(!replace(&mut global.no_start, true)),
        b"quiet" => return flag(replace(&mut global.quiet, 1) == 0),
        b"jobserver" => return flag(how.jobserver.replace(JobserverArg::Auto).is_none()),
        _ => {}
    }
    let text = value.or_else(|| rest.next())?.to_str()?;
    // A leading dash may mean that the value is missing and this is the next option.
    if text.is_empty() || text.starts_with('-') {
        return None;
    }
    match name {
        b"key" => lock.keys.push(sized_key(text).ok()?),
        b"key-literal" => lock.literals.push(literal(text).ok()?),
        b"read" => lock.reads.push(plain_key(text).ok()?),
        b"write" => lock.writes.push(plain_key(text).ok()?),
        b"per" => once(&mut lock.per, positive(text))?,
        b"buckets" => once(&mut lock.buckets, number(text))?,
        b"slots" => once(&mut lock.slots, slots(text))?,
        b"count" => once(&mut lock.count, positive(text))?,
        b"wait" => once(&mut wait.wait, length(text))?,
        b"conflict-exit-code" => once(&mut wait.conflict_exit_code, exit_code(text))?,
        b"priority" => once(&mut wait.priority, priority(text))?,
        b"max-waiting" => once(&mut wait.max_waiting, number(text))?,
        b"note" => once(&mut note.note, Ok(text.into()))?,
        b"socket" => once(&mut global.socket, Ok(text.into()))?,
        _ => return None,
    }
    Some(())
}

/// Stores a valid value, unless there already is one.
fn once<T>(place: &mut Option<T>, value: Result<T, String>) -> Option<()> {
    place.replace(value.ok()?).is_none().then_some(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use clap::Parser;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::cli::arguments::definition::{Cli, Verb};

    fn canal_run(words: &[&str]) -> Vec<OsString> {
        ["canal", "run"].iter().chain(words).map(OsString::from).collect()
    }

    #[test]
    fn the_usual_command_lines_need_no_clap() {
        for line in [
            "-k x -- make -j8",
            "-kx make --key y -n",
            "--key db --per 3 --buckets=2 -- ./migrate.sh",
            "-k deploy -w 10m ./deploy.sh",
            "-n -E 0 -k sync sync-all",
            "-k db/x -j 8 -- ./job.sh",
            "--write db --read conf -- -- x",
            "--socket /x/y -q --no-start --new-session -k a=3x2:2 -k b --with-children x",
            "-k x --priority 3 ''",
            "-k x --max-waiting 1 -E 0 -- sync",
            "-k cpu=8 --jobserver -- make",
            "--key-literal fix=2 --key-literal=a:1 -- ./deploy.sh",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(read(canal_run(&words).iter().map(OsString::as_os_str)).is_some(), "{line}");
        }
    }

    #[test]
    fn unusual_arguments_are_left_to_clap() {
        for line in [
            "-k x",
            "-k",
            "-k -n x",
            "-nk x y",
            "-k=x y",
            "-k x -k",
            "-n -n -k x y",
            "-n -w 1 -k x y",
            "-w 1 -w 2 -k x y",
            "-k x -c y",
            "-v -k x y",
            "--help",
            "--bogus x",
            "-k x --",
            "--key= x",
            "--no-wait=1 -k x y",
            "-k x --max-run 1 y",
            "-k /x y",
            "-j 0 -k x y",
            "-k x --keyx y z",
            "-qn -k x y",
            "-qq -k x y",
            "-q -q -k x y",
            "--progress log -k x y",
            "-k x - -",
            "-k x --priority -3 y",
            "-k x --jobserver=pipe make",
            "-k x --jobserver --jobserver make",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let plain = read(canal_run(&words).iter().map(OsString::as_os_str));
            // clap takes a lone `-` as an operand.
            assert!(plain.is_none(), "{line}: {plain:?}");
        }
        assert!(read([].into_iter()).is_none());
        for words in [&["canal"][..], &["canal", "status"], &["canal", "-q", "run", "-k", "x", "y"]]
        {
            assert!(read(words.iter().map(OsStr::new)).is_none(), "{words:?}");
        }
    }

    /// A word that may appear anywhere: options in all their forms, good and bad values, operands.
    fn word() -> impl Strategy<Value = OsString> {
        let names: &[_] = &[
            "key",
            "key-literal",
            "read",
            "write",
            "per",
            "buckets",
            "slots",
            "count",
            "wait",
            "no-wait",
            "socket",
            "conflict-exit-code",
            "priority",
            "note",
            "new-session",
            "with-children",
            "no-start",
            "quiet",
            "verbose",
            "max-run",
            "help",
            "keys",
            "",
        ];
        let values: &[_] = &[
            "x", "a/b", "a=3", "a=3x2:1", "a:2", "3", "0", "-1", "10m", "infinity", "", "=x", "-",
            "--", "/x", "a//b", "+3", "300", "é", "a=", "run", "help",
        ];
        let letters: &[_] =
            &["k", "j", "w", "E", "n", "q", "v", "c", "h", "V", "z", "nk", "qn", "kn"];
        let bytes = proptest::collection::vec(any::<u8>().prop_filter("no NUL", |b| *b != 0), 0..4);
        prop_oneof![
            4 => select(values).prop_map(OsString::from),
            3 => select(names).prop_map(|name| format!("--{name}").into()),
            2 => (select(names), select(values))
                .prop_map(|(name, value)| format!("--{name}={value}").into()),
            3 => select(letters).prop_map(|letter| format!("-{letter}").into()),
            2 => (select(letters), select(values))
                .prop_map(|(letter, value)| format!("-{letter}{value}").into()),
            1 => bytes.prop_map(OsString::from_vec),
        ]
    }

    /// An option with a suitable value, so that the test reads many lines to their end.
    fn option() -> impl Strategy<Value = Vec<OsString>> {
        let pairs: &[_] = &[
            ("-k", "x"),
            ("--key", "a=3x2:1"),
            ("-k", "b:2"),
            ("--key-literal", "c/d=2"),
            ("--read", "r"),
            ("--write", "w/x"),
            ("--per", "3"),
            ("--buckets", "0"),
            ("-j", "4"),
            ("--slots", "2"),
            ("--count", "1"),
            ("-w", "1h30m"),
            ("--wait", ".5"),
            ("-E", "0"),
            ("--conflict-exit-code", "255"),
            ("--priority", "7"),
            ("--max-waiting", "0"),
            ("--socket", "/x y"),
            ("--note", "run 7"),
        ];
        let flags: &[_] = &[
            "-n",
            "-q",
            "--no-wait",
            "--quiet",
            "--no-start",
            "--new-session",
            "--with-children",
            "--jobserver",
        ];
        prop_oneof![
            3 => select(pairs).prop_map(|(name, value)| vec![name.into(), value.into()]),
            1 => select(pairs).prop_map(|(name, value)| {
                let equals = if name.starts_with("--") { "=" } else { "" };
                vec![format!("{name}{equals}{value}").into()]
            }),
            1 => select(flags).prop_map(|flag| vec![flag.into()]),
        ]
    }

    fn line() -> impl Strategy<Value = Vec<OsString>> {
        let options = proptest::collection::vec(option(), 0..5).prop_map(|all| all.concat());
        let any = || proptest::collection::vec(word(), 0..6);
        prop_oneof![
            any(),
            (options, any()).prop_map(|(mut line, any)| {
                line.extend(any);
                line
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8 * ProptestConfig::default().cases))]
        #[test]
        fn the_fast_path_and_clap_read_the_same(line in line()) {
            let words = [OsString::from("canal"), "run".into()].into_iter().chain(line);
            let words: Vec<OsString> = words.collect();
            if let Some((global, run)) = read(words.iter().map(OsString::as_os_str)) {
                let plain = Cli { global, verb: Some(Verb::Run(run)) };
                let clap = Cli::try_parse_from(&words).map_err(|error| error.to_string());
                prop_assert_eq!(format!("{plain:?}"), format!("{:?}", clap.unwrap()), "{:?}", words);
            }
        }
    }
}
