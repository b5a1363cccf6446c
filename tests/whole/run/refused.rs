//! Refused commands: the exit code, the message and the JSON of each refusal, the same over the
//! journal and over engines.

use serde_json::Value;

use crate::backend::{self, over_engines};
use crate::namespace::privately_online;
use crate::world::World;
use crate::world::process::{Ended, Proc};

over_engines! {
    "one table of refusals holds for every place of the table":
        each_refusal_has_the_same_code_message_and_json_over_the_journal_and_over_engines,
        a_deadlock_with_its_own_session_is_refused_alike_over_the_journal_and_over_engines,
        a_command_without_permission_is_refused_alike_over_the_journal_and_over_engines;
}

/// A way to be refused.
struct Refusal {
    options: &'static [&'static str],
    code: i32,
    /// The reason in JSON. A failure (125) prints none.
    refused: Option<&'static str>,
    message: &'static str,
    /// Whether the holder of `x` is named.
    names_holder: bool,
    hint: &'static str,
}

const RESUME: &str = "resume it with `canal resize paused --resume`";
const TOO_MANY: &str = "use --key-literal if `small:2` is the key, because `:` starts a count; to \
                        take that many slots, give a large enough size with --slots";

const REFUSALS: [Refusal; 6] = [
    Refusal {
        options: &["-n", "-k", "x"],
        code: 75,
        refused: Some("full"),
        message: "`x` is full: 1 of 1 slots held",
        names_holder: true,
        hint: "",
    },
    Refusal {
        options: &["-w", "2", "--progress", "none", "-k", "x"],
        code: 75,
        refused: Some("timeout"),
        message: "the wait for `x` timed out: 1 of 1 slots held",
        names_holder: true,
        hint: "",
    },
    Refusal {
        options: &["--max-waiting", "0", "-k", "x"],
        code: 75,
        refused: Some("max-waiting"),
        message: "`x` is not free, and 0 requests are already waiting (at most 0 may wait)",
        names_holder: true,
        hint: "",
    },
    Refusal {
        options: &["-n", "-k", "paused"],
        code: 75,
        refused: Some("paused"),
        message: "`paused` is paused",
        names_holder: false,
        hint: RESUME,
    },
    Refusal {
        options: &["-w", "2", "--progress", "none", "-k", "paused"],
        code: 75,
        refused: Some("paused"),
        message: "the wait for `paused` timed out: it is paused",
        names_holder: false,
        hint: RESUME,
    },
    Refusal {
        options: &["-k", "small:2"],
        code: 125,
        refused: None,
        message: "2 slots of `small` can never be granted: no size is given, so it has 1 slot",
        names_holder: false,
        hint: TOO_MANY,
    },
];

/// The messages of a refusal. Returns the lines that are neither the reason nor the hint.
fn lines_between<'a>(ended: &'a Ended, message: &str, hint: &str) -> Vec<&'a str> {
    let mut lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.first(), Some(&format!("canal: {message}").as_str()), "{ended:?}");
    lines.remove(0);
    if !hint.is_empty() {
        assert_eq!(lines.pop(), Some(format!("hint: {hint}").as_str()), "{ended:?}");
    }
    lines
}

/// Checks a refusal. With a `holder`, the message names that process.
fn check(ended: &Ended, refusal: &Refusal, holder: Option<&Proc>) {
    let Refusal { refused, message, hint, .. } = refusal;
    let between = lines_between(ended, message, hint);
    match holder {
        Some(holder) => {
            let named = format!("canal: held by pid {} `cat` ", holder.pid());
            assert!(between.len() == 1 && between[0].starts_with(&named), "{ended:?}");
        }
        None => assert!(between.is_empty(), "{ended:?}"),
    }
    let Some(refused) = refused.filter(|_| !ended.stdout.is_empty()) else { return };
    let json = ended.json();
    let fields: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["holders", "message", "refused"], "{json}");
    assert_eq!((&json["refused"], &json["message"]), (&refused.into(), &(*message).into()));
    let pids: Vec<&Value> =
        json["holders"].as_array().unwrap().iter().map(|it| &it["pid"]).collect();
    let holders: Vec<Value> = holder.iter().map(|holder| holder.pid().into()).collect();
    assert_eq!(pids, holders.iter().collect::<Vec<_>>(), "{json}");
}

#[test]
fn each_refusal_has_the_same_code_message_and_json_over_the_journal_and_over_engines() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    world.canal(["resize", "paused", "--slots", "2"]).end().code(0);
    world.canal(["resize", "paused", "--pause"]).end().code(0);
    let pid = std::process::id().to_string();
    // Over an engine, some of the clients ask the host of the holder, and some the other host.
    for _ in 0..2 {
        for refusal in &REFUSALS {
            let Refusal { options, code, refused, .. } = refusal;
            let holder = refusal.names_holder.then_some(&holder);
            let run = [&["run"], *options, &["--", "echo", "ran"]].concat();
            let ended = world.canal(run).end().code(*code);
            assert_eq!(ended.stdout, "", "{ended:?}");
            check(&ended, refusal, holder);
            let acquire = [&["acquire", "--json", "--pid", &pid], *options].concat();
            let ended = world.canal(acquire).end().code(*code);
            assert_eq!(ended.stdout.is_empty(), refused.is_none(), "{ended:?}");
            check(&ended, refusal, holder);
        }
        // The next round begins at the other host.
        world.canal(["status"]).end().code(0);
    }
    holder.finish();
    world.until_idle();
}

#[test]
fn a_deadlock_with_its_own_session_is_refused_alike_over_the_journal_and_over_engines() {
    let world = World::with_daemon();
    let message = "deadlock: this session already holds `x`, so waiting for it would never end";
    let inner = "canal run --slots 2 -k x --count 2 -- echo ran";
    let ended = world.canal(["run", "--slots", "2", "-k", "x", "--", "sh", "-c", inner]).end();
    let ended = ended.code(75);
    assert_eq!(ended.stdout, "", "{ended:?}");
    assert!(lines_between(&ended, message, "")[0].starts_with("canal: held by pid "), "{ended:?}");
    let inner = "canal acquire --json --pid $$ --slots 2 -k x --count 2";
    let ended = world.canal(["run", "--slots", "2", "-k", "x", "--", "sh", "-c", inner]).end();
    let ended = ended.code(75);
    assert!(lines_between(&ended, message, "")[0].starts_with("canal: held by pid "), "{ended:?}");
    let json = ended.json();
    assert_eq!((&json["refused"], &json["message"]), (&"deadlock".into(), &message.into()));
    world.until_idle();
}

#[test]
fn a_command_without_permission_is_refused_alike_over_the_journal_and_over_engines() {
    let world = World::new();
    let log = backend::log();
    let engine = log.as_ref().map_or_else(String::new, |log| {
        format!("[engine]\nurl = \"{}\"\nttl = \"10h\"\nrenewal = \"10s\"\n", log.url)
    });
    let script = format!(
        "mount -t tmpfs -o mode=755 tmpfs /etc
        printf 'root:x:0:0::/root:/bin/sh\n' >/etc/passwd
        printf 'root:x:0:\nops:x:7001:\n' >/etc/group
        mkdir -m 755 /etc/canal /run/canal
        cat >/etc/canal/canal.toml <<'END'
{engine}[[permission]]
keys = \"deploy\"
groups = [\"ops\"]
may = [\"hold\"]
END
        canal daemon 2>/tmp/log &
        until_true canal run --no-start -k ready -- true >/dev/null 2>&1
        other() {{ setpriv --reuid 20003 --regid 20003 --clear-groups \"$@\"; }}
        other canal run -n -k deploy -- echo ran; echo \"code $?\"
        other sh -c 'canal acquire -n --json --pid $$ -k deploy'; echo \"code $?\"
        canal run -n -k deploy -- echo root"
    );
    let Some(ended) = privately_online(&world, &script) else { return };
    assert_eq!(ended.stdout, "code 125\ncode 125\nroot\n", "{ended:?}");
    let said = "canal: uid 20003 may not hold `deploy`; only the group ops may do so\n\
                hint: see `[[permission]]` in /etc/canal/canal.toml and canal.toml(5)\n";
    assert_eq!(ended.stderr, said.repeat(2), "{ended:?}");
}
