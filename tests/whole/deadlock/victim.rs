//! Scripts whose locks form a deadlock: canal refuses one request at once and sends its client the
//! steps of the deadlock. The others continue, and a retry succeeds.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::backend::{self, over_engines};
use crate::script::{Script, is_free, send_line, until_holds, until_nothing};
use crate::terminal::Terminal;
use crate::world::World;
use crate::world::process::{Ended, Proc};
use crate::world::record::Events;

over_engines! {
    "the sessions of a cycle are on two hosts, and `canal run` stays as a parent":
        of_two_scripts_the_younger_is_refused_whichever_closes_the_cycle,
        commands_that_become_each_other_take_part_in_a_deadlock;
}

/// The lines of a message about a deadlock.
fn deadlock_lines(stderr: &str) -> Vec<&str> {
    let from = stderr.lines().skip_while(|line| !line.contains("deadlock on "));
    from.take_while(|line| line.starts_with("canal: ")).collect()
}

#[test]
fn of_two_scripts_the_younger_is_refused_whichever_closes_the_cycle() {
    let world = World::with_daemon();
    for closed_by_the_younger in [true, false] {
        let mut elder = Script::start(&world, "elder", "--write a", "--write b");
        let mut younger = Script::start(&world, "younger", "--write b", "--write a");
        if closed_by_the_younger {
            elder.go_and_wait(&world);
            younger.go();
        } else {
            younger.go_and_wait(&world);
            elder.go();
        }
        let (one, two) = (elder.proc.pid_text(), younger.proc.pid_text());
        let victim = younger.refused();
        elder.succeeds();
        assert_eq!(Events::of(&world).started(), ["elder"]);

        let lines = deadlock_lines(&victim.stderr);
        assert_eq!(lines.len(), 5, "{victim:?}");
        assert!(lines[0].contains("2 sessions would wait for each other"), "{victim:?}");
        assert!(lines[1].contains("is waiting to write `a`, held for writing by"), "{victim:?}");
        assert!(lines[2].contains(&format!("pid {one} `sh -c")), "{victim:?}");
        assert!(lines[3].contains("is waiting to write `b`, held for writing by"), "{victim:?}");
        assert!(lines[4].contains(&format!("pid {two} `sh -c")), "{victim:?}");
        assert!(victim.stderr.contains("\nhint: "), "{victim:?}");
        until_nothing(&world);
        fs::remove_file(world.path("work/events")).unwrap();
    }
}

#[test]
fn the_refused_terminal_shows_the_cycle_and_a_retry_succeeds() {
    let world = World::with_daemon();
    let mut elder = Script::start(&world, "elder", "--write a", "--write b");
    let inner = "read go; canal run --write a -- sh -c 'echo got both'; exit $?";
    let again = "i=0; until canal run --write b -- sh -c \"$0\"; do code=$?; echo ended $code
            i=$((i + 1)); [ $code = 75 ] && [ $i -lt 3 ] || exit 9
        done; echo done $i";
    let mut younger = Terminal::start(&world, &["sh", "-c", again, inner]);
    crate::world::process::wait_until("the younger one holds", || !is_free(&world, "--read b"));
    elder.go_and_wait(&world);
    younger.keys("go\n");
    younger.until("2 sessions would wait for each other");
    let ring = younger.until("hint: ");
    for words in [
        "is waiting to write `a`, held for writing by",
        "is waiting to write `b`, held for writing by",
        &format!("pid {}", elder.proc.pid()),
        "which",
    ] {
        assert!(ring.contains(words), "{words}: {ring}");
    }
    younger.until("ended 75");
    elder.succeeds();
    younger.keys("go\n");
    younger.until("got both");
    younger.until("done 1");
    assert_eq!(younger.end().0.code, Some(0));
    until_nothing(&world);
}

#[test]
fn of_three_scripts_only_the_youngest_is_refused_first_or_last() {
    let world = World::with_daemon();
    for order in [[0, 1, 2], [2, 1, 0]] {
        let mut ring = [("one", "a", "b"), ("two", "b", "c"), ("three", "c", "a")].map(
            |(name, outer, inner)| {
                let [outer, inner] = [outer, inner].map(|key| format!("--write {key}"));
                Script::start(&world, name, &outer, &inner)
            },
        );
        let [first, second, last] = order;
        ring[first].go_and_wait(&world);
        ring[second].go_and_wait(&world);
        ring[last].go();
        let [one, two, three] = ring;
        let pids = [&one, &two, &three].map(|script| script.proc.pid_text());
        let victim = three.refused();
        one.succeeds();
        two.succeeds();
        assert_eq!(Events::of(&world).started(), ["two", "one"], "{order:?}");
        let text = deadlock_lines(&victim.stderr).join("\n");
        assert!(text.contains("3 sessions would wait for each other"), "{order:?}: {victim:?}");
        for (key, pid) in ["b", "c", "a"].iter().zip(&pids) {
            assert!(
                text.contains(&format!("is waiting to write `{key}`")),
                "{order:?}: {victim:?}"
            );
            assert!(text.contains(&format!("pid {pid} ")), "{order:?}: {victim:?}");
        }
        until_nothing(&world);
        fs::remove_file(world.path("work/events")).unwrap();
    }
}

#[test]
fn readers_that_both_ask_to_write_are_a_deadlock_and_the_retry_succeeds() {
    let world = World::with_daemon();
    let mut elder = Script::start(&world, "elder", "--read a", "--write a");
    let mut younger = Script::start(&world, "younger", "--read a", "--write a");
    elder.go_and_wait(&world);
    younger.go();
    let victim = younger.refused();
    assert!(deadlock_lines(&victim.stderr)[1].contains("held for reading by"), "{victim:?}");
    elder.succeeds();
    let mut again = Script::start(&world, "again", "--read a", "--write a");
    again.go();
    again.succeeds();
    assert_eq!(Events::of(&world).started(), ["elder", "again"]);
    until_nothing(&world);
}

/// In `canal run --write a -- canal run --write b`, each command becomes the next one. With the
/// journal all of them are one process.
#[test]
fn commands_that_become_each_other_take_part_in_a_deadlock() {
    let world = World::with_daemon();
    let chain = |first: &str, second: &str| -> Proc {
        let body = format!("read go; exec canal run --write {second} -- echo both");
        let args = ["run", "--write", first, "--", "sh", "-c", &body];
        let one = world.canal(args).stdin(Stdio::piped()).spawn();
        until_holds(&world, one.pid(), first);
        one
    };
    let (mut elder, mut younger) = (chain("a", "b"), chain("b", "a"));
    send_line(&mut elder, "go");
    world.until_waiting("b", 1);
    let pids = [elder.pid_text(), younger.pid_text()];
    send_line(&mut younger, "go");
    let victim = younger.end().code(75);
    let lines = deadlock_lines(&victim.stderr);
    if backend::is_engine() {
        // Over an engine the second command stays as a parent, within the first.
        assert_eq!(lines.len(), 5, "{victim:?}");
        assert!(lines[2].contains(&pids[0]) && lines[4].contains(&pids[1]), "{victim:?}");
    } else {
        assert_eq!(lines.len(), 3, "{victim:?}");
        assert!(lines[1].contains(&pids[1]) && lines[2].contains(&pids[0]), "{victim:?}");
        assert!(lines[2].ends_with(&format!("held for writing by pid {}", pids[1])), "{victim:?}");
    }
    assert_eq!(elder.end().code(0).stdout, "both\n");
    until_nothing(&world);
}

#[test]
fn a_conflict_code_never_replaces_75_for_a_deadlock() {
    let world = World::with_daemon();
    let mut elder = Script::start(&world, "elder", "--write a", "--write b");
    let mut younger = Script::start(&world, "younger", "--write b", "--write a -E 0");
    elder.go_and_wait(&world);
    younger.go();
    assert!(!deadlock_lines(&younger.refused().stderr).is_empty());
    elder.succeeds();
}

/// Checks the output of `canal acquire --json` about a deadlock, and its exit code.
#[test]
fn json_lists_the_cycle_step_by_step() {
    let world = World::with_daemon();
    let mut elder = Script::start(&world, "elder", "--write a", "--write b");
    let body = "read go; canal acquire --pid $$ -E 3 --json --write a; exit $?";
    let args = ["run", "--write", "b", "--", "sh", "-c", body];
    let mut younger = world.canal(args).stdin(Stdio::piped()).spawn();
    until_holds(&world, younger.pid(), "b");
    elder.go_and_wait(&world);
    let pids = [younger.pid(), elder.inner_pid(), elder.proc.pid()];
    send_line(&mut younger, "go");
    let victim: Ended = younger.end().code(75);
    elder.succeeds();
    let json = victim.json();
    assert_eq!(json["refused"], "deadlock");
    let cycle = json["cycle"].as_array().unwrap();
    assert_eq!(cycle.len(), 2, "{json}");
    let step = |n: usize| {
        let Value::Object(step) = &cycle[n] else { panic!("{json}") };
        let party = |party: &Value| (party["pid"].clone(), party["session"].clone());
        (party(&step["waiter"]), step["key"].clone(), party(&step["blocker"]["party"]))
    };
    let ((first, mine), key, (held_by, other)) = step(0);
    assert_eq!((first, key, held_by), (pids[0].into(), "a".into(), pids[2].into()), "{json}");
    let ((second, its), key, (held_by, again)) = step(1);
    assert_eq!((second, key, held_by), (pids[1].into(), "b".into(), pids[0].into()), "{json}");
    assert_eq!((&mine, &other), (&again, &its), "{json}");
    assert_ne!(mine, other, "{json}");
    for step in cycle {
        assert_eq!(step["mode"], "write");
        assert_eq!(step["blocker"]["mode"], "write");
        assert_eq!(step["blocker"]["holds"], true);
        assert!(step["waiter"]["command"].is_string() && step["waiter"]["uid"].is_u64());
    }
}
