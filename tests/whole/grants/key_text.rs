//! Keys made from a user's text: the name of a branch, or a host with a port.

use serde_json::Value;

use crate::world::World;
use crate::world::process::Ended;

/// Texts that canal could read as a key with a size or a count.
const TEXTS: [&str; 5] = ["fix=2", "fix:1", "fix=3x2:1", "localhost:5432", "=2"];

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn a_text_behind_a_slash_and_a_literal_key_exclude_each_other_and_nobody_else() {
    let world = World::with_daemon();
    for text in TEXTS {
        let key = format!("deploy/{text}");
        let holder = world.holder(&["-k", &key]);
        for option in ["-k", "--key-literal", "--write"] {
            world.canal(["run", "-n", option, &key, "--", "true"]).end().code(75);
        }
        world.canal(["run", "-n", "-k", "deploy/fix", "--", "true"]).end().code(0);
        holder.finish();
        let holder = world.holder(&["--key-literal", text, "-j", "1"]);
        world.canal(["run", "-n", "--key-literal", text, "--", "true"]).end().code(75);
        world.canal(["run", "-n", "-k", "fix", "--", "true"]).end().code(0);
        holder.finish();
    }
}

#[test]
fn options_describe_a_literal_key() {
    let world = World::with_daemon();
    let lock = ["--key-literal", "fix=2", "--per", "2", "--buckets", "2", "--count", "3"];
    let holder = world.holder(&lock);
    let key = world.key("fix=2");
    assert_eq!((key.held, key.capacity), (3, Some(4)));
    holder.finish();
}

#[test]
fn each_command_names_a_key_that_looks_like_a_size() {
    let world = World::with_daemon().on_one_host();
    for text in TEXTS {
        let holder = world.holder(&["--key-literal", text]);
        for command in ["status", "history", "stats", "leader", "trace"] {
            let shown = world.canal([command, text]).end().code(0);
            assert!(command != "status" || shown.stdout.contains(text), "{shown:?}");
        }
        world.canal(["status", "--under", text]).end().code(0);
        world.canal(["test", "--key-literal", text]).end().code(75);
        world.canal(["resize", text, "--slots", "2"]).end().code(0);
        let second = world.holder(&["--key-literal", text]);
        world.canal(["kill", "--yes", text]).end().code(0);
        for proc in [holder, second] {
            assert_eq!(proc.end().signal, Some(15));
        }
        let script = format!(
            "canal acquire -n --pid $$ --key-literal '{text}' && canal release --pid $$ '{text}'"
        );
        world.sh(&script).end().code(0);
        let found = world.canal(["history", text, "--json"]).end().code(0);
        assert!(found.stdout.contains(text), "{found:?}");
    }
}

#[test]
fn how_a_key_was_read_is_said_once_and_always_in_json() {
    let world = World::with_daemon().on_one_host();
    let quiet = ["run", "-q", "-k", "quiet=2", "--", "true"];
    assert_eq!(world.canal(quiet).end().code(0).stderr, "");
    for (text, said) in [
        ("fix=2", "`fix=2` means the key `fix` with `=2`"),
        ("fix:1", "`fix:1` means the key `fix` with `:1`"),
        ("a/fix=2", "`a/fix=2` is the whole key"),
    ] {
        let run = || world.canal(["run", "-k", text, "--", "true"]).end().code(0).stderr;
        let first = run();
        assert!(first.contains(said) && first.contains("--key-literal"), "{first}");
        assert_eq!(run(), "", "cron mails every word");
        let asked = world.canal(["test", text, "--json"]).end().code(0);
        assert_eq!(json(&asked)["notes"][0]["read"], text);
        let script = format!("canal acquire --json --pid $$ '{text}'");
        let note = &json(&world.sh(&script).end().code(0))["notes"][0];
        assert_eq!((&note["read"], &note["first"]), (&Value::from(text), &Value::from(false)));
    }
    for args in [["-k", "a/b=x"], ["-k", "plain"], ["--key-literal", "a/fix=2"]] {
        let ended = world.canal([&["run"], &args[..], &["--", "true"]].concat()).end().code(0);
        assert_eq!(ended.stderr, "", "{args:?}");
    }
}

#[test]
fn a_refusal_says_how_the_key_was_read() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "fix", "-j", "1"]);
    let refused = world.canal(["run", "-n", "-k", "fix=1", "--", "true"]).end().code(75);
    assert!(refused.stderr.contains("`fix=1` means the key `fix`"), "{refused:?}");
    holder.finish();
}

#[test]
fn a_port_is_not_answered_with_a_lock_of_so_many_slots() {
    let world = World::with_daemon();
    let refused = world.canal(["run", "-n", "-k", "localhost:5432", "--", "true"]).end().code(125);
    let words = "hint: use --key-literal if `localhost:5432` is the key";
    assert!(refused.stderr.contains(words), "{refused:?}");
    assert!(!refused.stderr.contains("--slots 5432"), "{refused:?}");
    let ended = world.canal(["run", "-n", "-k", "fix=main", "--", "true"]).end().code(125);
    assert!(ended.stderr.contains("--key-literal"), "{ended:?}");
}

#[test]
fn a_size_is_no_part_of_the_key_that_release_and_resize_name() {
    let world = World::with_daemon();
    let script = "canal acquire --pid $$ gpu=4; canal release --pid $$ gpu=4";
    let ended = world.sh(script).end().code(125);
    assert!(ended.stderr.contains("without the =SIZE and :COUNT"), "{ended:?}");
    let ended = world.canal(["resize", "gpu=4"]).end().code(125);
    assert!(ended.stderr.contains("`canal resize gpu --slots 4`"), "{ended:?}");
}
