//! `canal status`: who holds a lock and since when, and why a request waits.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::backend::{self, over_engines};
use crate::terminal::Terminal;
use crate::world::World;
use crate::world::process::{Proc, sleeps, wait_until};

over_engines! {
    "a report names the host of each process":
        the_json_has_the_documented_fields;
}

/// The output of `canal status ARGS` in a pipe.
fn piped(world: &World, args: &[&str]) -> String {
    let mut all = vec!["status"];
    all.extend(args);
    of_locks(world.sh("canal \"$@\" | cat").arg("sh").args(&all).end().code(0).stdout)
}

/// Drops the first lines, which name the engine and its hosts if there is an engine.
fn of_locks(text: String) -> String {
    if !backend::is_engine() {
        return text;
    }
    let (first, rest) = text.split_once('\n').unwrap();
    assert!(first.starts_with("engine ") && first.contains(", one of 2 hosts"), "{text}");
    let is_of_host = |line: &&str| line.starts_with("  host ");
    rest.split_inclusive('\n').skip_while(is_of_host).collect()
}

/// The output on a terminal of 80 columns, without colours.
fn shown(world: &World) -> String {
    let terminal = Terminal::start(world, &["env", "NO_COLOR=1", "canal", "status"]);
    let (ended, seen) = terminal.end();
    assert_eq!(ended.code, Some(0), "{seen}");
    assert!(!seen.contains('\x1b'), "NO_COLOR is honoured: {seen:?}");
    of_locks(seen)
}

fn fits_80_columns(text: &str) {
    for line in text.lines() {
        assert!(line.trim_end().chars().count() <= 80, "too wide: {line:?}");
    }
}

#[test]
fn without_locks_status_prints_that() {
    let world = World::with_daemon();
    assert_eq!(piped(&world, &[]), "no locks are held; no one is waiting\n");
    assert_eq!(shown(&world), "no locks are held; no one is waiting\r\n");
    assert_eq!(world.status_json()["keys"], Value::Array(Vec::new()));
}

#[test]
fn status_shows_holders_times_and_reasons_of_waits() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "db/main"]);
    let first = world.waiter("db/main", &[], &["echo", "first"]);
    let second = world.waiter("db/main", &[], &["echo", "second"]);
    for text in
        [piped(&world, &[]), shown(&world), piped(&world, &["db"]), piped(&world, &["db/main"])]
    {
        fits_80_columns(&text);
        assert!(text.contains("db/main"), "{text}");
        let line = |pid: &str| {
            text.lines()
                .find(|line| line.split_whitespace().any(|word| word == pid))
                .unwrap_or_else(|| panic!("{text}"))
        };
        assert!(line(&holder.pid_text()).contains("cat"), "{text}");
        assert!(line(&first.pid_text()).contains("echo first"), "{text}");
        assert!(line(&second.pid_text()).contains("echo second"), "{text}");
        assert!(text.contains("1 of 1"), "{text}");
    }
    assert_eq!(piped(&world, &["d"]), "no one holds or waits for d\n");
    holder.finish();
    first.end();
    second.end();
}

#[test]
fn the_json_has_the_documented_fields() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "gpu=2x2:3"]);
    let waiter = world.waiter(
        "gpu",
        &["--per", "2", "--buckets", "2", "--count", "2", "--priority", "3"],
        &["true"],
    );
    let status = world.status_json();
    let daemon = &status["daemon"];
    assert!(daemon["pid"].is_u64() && daemon["version"].is_string() && daemon["since"].is_string());
    assert_eq!(daemon["socket"], world.socket().display().to_string());
    let key = &status["keys"][0];
    assert_eq!(key["key"], "gpu");
    assert_eq!(key["kind"], "buckets");
    assert_eq!(key["held"], 3);
    assert_eq!(key["capacity"], 4);
    assert_eq!(key["waiting"], 1);
    let first = &key["holders"][0];
    assert_eq!(first["pid"], holder.pid());
    assert_eq!(first["uid"], nix::unistd::geteuid().as_raw());
    assert_eq!(first["command"], "cat");
    assert_eq!(first["slots"], serde_json::json!([0, 1, 2]));
    assert!(first["token"].is_u64() && first["session"].is_string());
    let host = &first["host"];
    assert!(
        if backend::is_engine() { host == "a" || host == "b" } else { host.is_null() },
        "{host}"
    );
    let since = first["since"].as_str().unwrap();
    assert!(since.ends_with('Z') && since.len() >= 20 && since.as_bytes()[10] == b'T', "{since}");
    let next = &key["waiters"][0];
    assert_eq!(next["pid"], waiter.pid());
    assert_eq!(next["position"], 1);
    assert_eq!(next["priority"], 3);
    assert_eq!(next["command"], "true");
    assert!(next["reason"].is_string() && next["since"].is_string());
    for (object, names) in [
        (key, &["key", "kind", "held", "capacity", "waiting", "holders", "waiters"][..]),
        (first, &["pid", "uid", "command", "since", "token", "slots", "session", "host"]),
        (next, &["pid", "uid", "command", "since", "session", "host", "position", "priority"]),
    ] {
        for name in names {
            assert!(object.get(name).is_some(), "{name} is missing in {object}");
        }
    }
}

#[test]
fn two_hundred_keys_are_readable_in_eighty_columns() {
    let world = World::with_daemon();
    let script = "i=0; while [ $i -lt 200 ]; do
            canal acquire -q --pid $$ -k team-$((i % 7))/project-with-a-long-name/job-$i --per 3 --buckets 2 || exit
            i=$((i + 1))
        done; echo all; read line";
    let script = world.sh(script).stdin(Stdio::piped()).spawn();
    wait_until("all are held", || script.stdout() == "all\n");
    fits_80_columns(&shown(&world));
    for text in [piped(&world, &[]), shown(&world)] {
        for n in 0..200 {
            let name = format!("job-{n}");
            let named =
                |line: &str| line.split(|c: char| c == '/' || c.is_whitespace()).any(|w| w == name);
            assert_eq!(text.lines().filter(|line| named(line)).count(), 1, "{name}: {text}");
        }
        assert!(text.lines().count() <= 620, "{}", text.lines().count());
    }
    assert_eq!(world.status_json()["keys"].as_array().unwrap().len(), 200);
}

#[test]
fn control_characters_of_a_command_are_never_printed_raw() {
    let world = World::with_daemon();
    let evil = "\x1b]0;owned\x07 \x1b[31m \r hidden";
    let args = ["run", "-k", "x", "--", "sh", "-c", "read line", evil];
    let holder: Proc = world.canal(args).stdin(Stdio::piped()).spawn();
    world.until_held("x", 1);
    let waiter = world.waiter("x", &[], &["true", evil]);
    let busy = world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    for text in [piped(&world, &[]), shown(&world), busy.stderr] {
        let bad = |c: char| c.is_control() && !matches!(c, '\n' | '\r');
        assert!(!text.contains(bad) && !text.replace("\r\n", "").contains('\r'), "{text:?}");
    }
    holder.finish();
    waiter.end();
}

#[test]
fn watching_shows_every_change_until_the_reader_is_gone() {
    let world = World::with_daemon();
    let mut watch = world.canal(["status", "--watch", "--json"]).spawn();
    wait_until("the first state is shown", || watch.stdout().contains("keys"));
    let holder = world.holder(&["-k", "x"]);
    wait_until("the holder is shown", || watch.stdout().contains(&holder.pid_text()));
    holder.finish();
    assert!(!watch.has_ended());
    watch.kill();
    // When its reader closes the pipe, canal ends without a message.
    let script = "canal status --watch | head -1 >first; echo ${PIPESTATUS[0]}";
    let ended = world.program("bash", ["-c", script]).spawn();
    wait_until("the first line is read", || !world.read("first").is_empty());
    world.holder(&["-k", "y"]).finish();
    let ended = ended.end();
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_watcher_wakes_only_for_times_shown_on_a_terminal() {
    let world = World::with_daemon().on_one_host();
    let wakes_within_3_s = |pid: i32| {
        let before = sleeps(pid);
        thread::sleep(Duration::from_secs(3));
        sleeps(pid) - before
    };
    let holder = world.holder(&["-k", "x"]);
    let watch = world.canal(["status", "--watch", "--json"]).spawn();
    wait_until("the holder is shown", || watch.stdout().contains(&holder.pid_text()));
    wait_until("it sleeps for seconds on end", || wakes_within_3_s(watch.pid()) == 0);
    watch.kill();

    let mut terminal = Terminal::start(&world, &["canal", "status", "--watch", "x"]);
    // The line shows how long the lock has been held.
    terminal.until(&holder.pid_text());
    terminal.until("1s");
    terminal.until("3s");
    holder.finish();
    terminal.until("no one holds or waits for x");
    let pid = terminal.session.pid();
    wait_until("it sleeps for seconds on end", || wakes_within_3_s(pid) == 0);
    let holder = world.holder(&["-k", "x"]);
    terminal.until(&holder.pid_text());
    terminal.session.signal(Signal::SIGTERM);
    terminal.end();
    holder.finish();
}

#[test]
fn a_closed_standard_output_does_not_panic() {
    let world = World::with_daemon();
    for redirection in [">&-", ">/dev/full", "| true"] {
        for command in ["status", "status --json", "--help", "help run"] {
            let ended = world.sh(&format!("canal {command} {redirection}")).end();
            assert!(!ended.stderr.contains("panicked"), "{command} {redirection}: {ended:?}");
        }
    }
}

#[test]
fn one_line_names_each_holder_and_waiter() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "gpu=2", "--note", "left out"]);
    let wide = world.canal(["run", "--read", "db", "--", "cat"]).stdin(Stdio::piped()).spawn();
    wait_until("it reads db", || world.key("db").holders.len() == 1);
    let waiter = world.canal(["run", "--write", "db", "--", "true"]).spawn();
    world.until_waiting("db", 1);
    let page = world.canal(["status", "-1"]).end().code(0).stdout;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<Vec<String>> = page.lines().map(words).collect();
    assert_eq!(lines[0], ["KEY", "PLACE", "PID", "USER", "FOR", "SLOTS", "COMMAND"]);
    let begins: Vec<String> = lines[1..].iter().map(|line| line[..3].join(" ")).collect();
    let expected = [
        format!("db holds {}", wide.pid()),
        format!("db #1 {}", waiter.pid()),
        format!("gpu holds {}", holder.pid()),
    ];
    assert_eq!(begins, expected, "{page}");
}
