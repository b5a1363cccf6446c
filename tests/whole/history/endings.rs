//! The history records each way in which a request can end.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::script::Script;
use crate::whole::history::{records, until_recorded};
use crate::world::World;
use crate::world::process::wait_until;

/// Whether the kernel reports how a process ended that is not the daemon's child (since Linux
/// 6.15).
fn tells_exits() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 15)
}

/// How each request ended, with the exit status or signal.
fn hows(records: &[Value]) -> Vec<String> {
    let how = |record: &Value| {
        let more = ["exit", "signal"].map(|name| (name, &record[name]));
        let more = more.into_iter().filter(|(_, value)| !value.is_null());
        let more: String = more.map(|(name, value)| format!(" {name} {value}")).collect();
        record["how"].as_str().unwrap().to_owned() + &more
    };
    records.iter().map(how).collect()
}

#[test]
fn commands_leave_their_exit_status_or_the_signal_that_killed_them() {
    let world = World::with_daemon().on_one_host();
    world.canal(["run", "-k", "a", "--", "true"]).end().code(0);
    until_recorded(&world, &["a"], 1);
    world.canal(["run", "-k", "a", "--note", "run 7", "--", "sh", "-c", "exit 3"]).end().code(3);
    until_recorded(&world, &["a"], 2);
    world.holder(&["-k", "a"]).kill();
    let found = until_recorded(&world, &["a"], 3);
    if tells_exits() {
        assert_eq!(hows(&found), ["ended exit 0", "ended exit 3", "ended signal 9"]);
        assert_eq!(records(&world, &["a", "--failed"]).len(), 2);
    }
    let record = &found[1];
    assert_eq!(record["command"], "sh -c exit 3");
    assert_eq!(record["note"], "run 7");
    let item = json!({ "key": "a", "mode": "counted", "count": 1, "slots": "0" });
    assert_eq!(record["items"], json!([item]));
    assert_eq!(record["uid"], nix::unistd::geteuid().as_raw());
    assert!(record["token"].is_u64() && record["held_ms"].is_u64());
    assert!(record["session"].as_str().unwrap().starts_with('s'));
    assert!(found[0]["number"].as_u64() < found[1]["number"].as_u64());
    for name in ["asked", "ended"] {
        // `33.5Z` is earlier than `33.539Z`, but later when compared as text.
        let times = found.iter().map(|it| it[name].as_str().unwrap().trim_end_matches('Z'));
        let times: Vec<_> = times.collect();
        assert!(times.is_sorted(), "{times:?}");
    }
}

/// The daemon finds the stopped waiter only when it refuses the request that is behind it.
#[test]
fn a_request_that_is_granted_past_a_stopped_waiter_was_never_refused() {
    let world = World::with_daemon().on_one_host();
    world.canal(["resize", "x", "--slots", "3"]).end().code(0);
    let holder = world.holder(&["-k", "x", "--count", "2"]);
    let stopped = world.waiter("x", &["--count", "3"], &["true"]);
    stopped.stop();
    world.canal(["run", "-n", "-k", "x", "--", "echo", "past"]).end().code(0);
    stopped.signal(Signal::SIGCONT);
    holder.finish();
    stopped.end().code(0);
    let found = until_recorded(&world, &["x"], 3);
    let commands: Vec<_> = found.iter().map(|record| &record["command"]).collect();
    assert_eq!(commands.iter().filter(|command| **command == "echo past").count(), 1, "{found:?}");
}

#[test]
fn what_nobody_reaps_leaves_its_exit_status_too() {
    let world = World::with_daemon().on_one_host();
    // The shell becomes a program that never waits for its child.
    let script = "canal run -k a -- sh -c 'exit 6' & canal run -k a -- true & exec sleep 600";
    let parent = world.sh(script).spawn();
    let found = until_recorded(&world, &["a"], 2);
    let mut hows = hows(&found);
    hows.sort_unstable();
    assert_eq!(hows, ["ended exit 0", "ended exit 6"]);
    let failed = world.canal(["history", "--failed", "a"]).end().code(0).stdout;
    assert!(failed.contains("  exit 6  ") && !failed.contains("  exit 0  "), "{failed}");
    parent.kill();
}

#[test]
fn an_unknown_exit_status_is_listed_among_the_failures() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "a"]);
    world.kill_daemon();
    holder.finish();
    world.daemons_return();
    let found = until_recorded(&world, &["--failed", "a"], 1);
    assert_eq!(hows(&found), ["ended"]);
    let failed = world.canal(["history", "--failed", "a"]).end().code(0).stdout;
    assert!(failed.contains("  ended (exit status unknown)  "), "{failed}");
}

#[test]
fn what_was_refused_given_up_and_released_is_recorded_too() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "b"]);
    world.canal(["run", "-n", "-k", "b", "--", "true"]).end().code(75);
    world.canal(["run", "-w", "0.05", "-k", "b", "--", "true"]).end().code(75);
    let waiter = world.waiter("b", &[], &["true"]);
    waiter.signal(Signal::SIGKILL);
    waiter.end();
    world.until_waiting("b", 0);
    let found = until_recorded(&world, &["b"], 3);
    let mut hows = hows(&found);
    // The kernel decides whether the daemon first notices the end of the connection or of the
    // process.
    let last = hows.pop().unwrap();
    assert_eq!(hows, ["full", "timeout"]);
    assert!(last == "withdrawn" || last.starts_with("ended"), "{last}");
    assert!(found.iter().all(|record| record["held_ms"].is_null() && record["token"].is_null()));
    assert!(found[1]["waited_ms"].as_u64().unwrap() >= 40, "{found:?}");
    let token = world.key("b").holders[0].token.to_string();
    world.canal(["release", "--force", "--token", &token]).end().code(0);
    let forced = until_recorded(&world, &["b"], 4).pop().unwrap();
    assert_eq!(forced["how"], "forced");
    assert_eq!(forced["by"]["uid"], nix::unistd::geteuid().as_raw());
    assert_eq!(forced["token"].as_u64().unwrap().to_string(), token);
    holder.finish();
    world.sh("canal acquire --pid $$ -k c && canal release --pid $$ c").end().code(0);
    let released = until_recorded(&world, &["c"], 1);
    assert_eq!(released[0]["how"], "released");
    let all = records(&world, &[]);
    assert_eq!(all.len(), 5, "a hold that was broken is recorded once: {all:?}");
}

#[test]
fn a_command_that_the_time_limit_ended_is_told_from_one_that_was_killed() {
    let world = World::with_daemon().on_one_host();
    let run = |key: &str, max_run: &str, script: &str| {
        world.canal(["run", "--max-run", max_run, "-k", key, "-c", script]).end()
    };
    run("plain", "50ms", "exec sleep 600").code(124);
    run("graceful", "50ms", "trap 'kill $!; exit 0' TERM; sleep 600 & wait").code(124);
    assert_eq!(run("other", "1h", "kill -TERM $$").signal, Some(Signal::SIGTERM as i32));
    run("good", "1h", "exit 0").code(0);
    let job = ["submit", "--max-run", "50ms", "-k", "job", "--", "sleep", "600"];
    let job = world.canal(job).end().code(0).stdout;
    world.canal(["wait", job.split(' ').next().unwrap()]).end().code(124);
    for (key, how, end) in [
        ("plain", "max-run", "signal 15"),
        ("graceful", "max-run", "exit 0"),
        ("other", "ended", "signal 15"),
        ("good", "ended", "exit 0"),
        ("job", "max-run", "signal 15"),
    ] {
        let found = until_recorded(&world, &[key], 1);
        assert_eq!(found[0]["how"], how, "{key}: {found:?}");
        if tells_exits() {
            assert_eq!(hows(&found), [format!("{how} {end}")]);
        }
        let failures = usize::from(key != "good");
        if tells_exits() || how == "max-run" {
            assert_eq!(records(&world, &["--failed", key]).len(), failures, "{key}");
        }
    }
    let shown = world.canal(["history"]).end().code(0).stdout;
    assert_eq!(shown.matches("  max-run").count(), 3, "{shown}");
    let trace = world.canal(["trace", "plain"]).end().code(0).stdout;
    assert!(trace.contains("\"how\":\"max-run\""), "{trace}");
}

#[test]
fn a_waiter_that_canal_kill_ended_did_not_give_up() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "a"]);
    let killed = world.waiter("a", &[], &["true"]);
    let pid = killed.pid_text();
    let kill = world.canal(["kill", "--yes", "--pid", &pid]).spawn();
    assert_eq!(killed.end().signal, Some(Signal::SIGTERM as i32));
    let found = until_recorded(&world, &["a"], 1);
    assert_eq!(hows(&found), ["killed signal 15"]);
    let by = json!({ "uid": nix::unistd::geteuid().as_raw(), "pid": kill.pid() });
    assert_eq!(found[0]["by"], by);
    assert!(found[0]["held_ms"].is_null(), "{found:?}");
    kill.end().code(0);
    // Ctrl-C, as the terminal sends it.
    let interrupted = world.waiter("a", &[], &["true"]);
    interrupted.signal(Signal::SIGINT);
    interrupted.end();
    // A signal that ends no process is not the reason for a later end.
    let continued = world.waiter("a", &[], &["true"]);
    let pid = continued.pid_text();
    world.canal(["kill", "--yes", "--signal", "CONT", "--pid", &pid]).end().code(0);
    continued.kill();
    let found = until_recorded(&world, &["a"], 3);
    let others = &found[1..];
    assert!(others.iter().all(|it| it["how"] != "killed" && it["by"].is_null()), "{others:?}");
    holder.finish();
    let shown = world.canal(["history", "a"]).end().code(0).stdout;
    assert_eq!(shown.matches("  (killed: TERM)  ").count(), 1, "{shown}");
    assert!(shown.contains(" (pid ") && shown.contains("killed by "), "{shown}");
}

#[test]
fn a_lease_that_was_not_renewed_is_expired() {
    let world = World::with_daemon().on_one_host();
    let ended = world.canal(["acquire", "--ttl", "1", "lease"]).end();
    // On a busy machine its TTL can pass before its client has confirmed it.
    if !ended.stderr.contains("took the lock back before the confirmation") {
        ended.code(0);
    }
    let found = until_recorded(&world, &["lease"], 1);
    assert_eq!((&found[0]["how"], &found[0]["pid"]), (&json!("expired"), &json!(0)));
    assert!(found[0]["held_ms"].as_u64().unwrap() >= 900, "{found:?}");
}

#[test]
fn a_deadlock_is_recorded_with_its_ring() {
    let world = World::with_daemon().on_one_host();
    let mut first = Script::start(&world, "first", "-k a", "-k b");
    let mut second = Script::start(&world, "second", "-k b", "-k a");
    first.go_and_wait(&world);
    second.go();
    second.proc.end().code(75);
    first.proc.end().code(0);
    let mut refused = Vec::new();
    wait_until("the refusal is recorded", || {
        let found = records(&world, &["--failed"]);
        refused = found.into_iter().filter(|record| record["how"] == "deadlock").collect();
        refused.len() == 1
    });
    let cycle = refused[0]["cycle"].as_array().unwrap();
    let keys: Vec<_> = cycle.iter().map(|step| step["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["a", "b"]);
    assert_eq!(cycle[0]["session"], refused[0]["session"]);
    assert_ne!(cycle[0]["session"], cycle[1]["session"]);
    assert!(cycle.iter().all(|step| step["pid"].as_u64().unwrap() > 0), "{cycle:?}");
}

#[test]
fn a_hold_kept_for_descendants_ends_with_the_last_of_them() {
    let world = World::with_daemon().on_one_host();
    let script = "sleep 0.3 & exit 4";
    world.canal(["run", "--with-children", "-k", "d", "--", "sh", "-c", script]).end().code(4);
    let found = until_recorded(&world, &["d"], 1);
    assert_eq!(found[0]["how"], "ended");
    assert!(found[0]["held_ms"].as_u64().unwrap() >= 200, "{found:?}");
    if tells_exits() {
        assert_eq!(found[0]["exit"], 4);
    }
}

#[test]
fn the_table_is_for_people_and_csv_for_programs() {
    let world = World::with_daemon().on_one_host();
    for key in ["x/1", "x/2", "x/3", "y"] {
        world.canal(["run", "-k", key, "--", "true"]).end().code(0);
    }
    until_recorded(&world, &[], 4);
    let shown = world.canal(["history", "x", "-n", "2"]).end().code(0).stdout;
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert!(lines[0].starts_with("  ENDED "), "{shown}");
    assert!(lines[1].ends_with("x/2  true") && lines[2].ends_with("x/3  true"), "{shown}");
    let csv = world.canal(["history", "--csv", "--since", "1h"]).end().code(0).stdout;
    assert_eq!(csv.lines().count(), 5, "{csv}");
    assert!(csv.starts_with("number,asked,ended,how,"), "{csv}");
    let none = world.canal(["history", "nowhere"]).end().code(0).stdout;
    assert_eq!(none, "no matching request has ended\n");
    let other = world.canal(["history", "--user", "4000000"]).end().code(0).stdout;
    assert_eq!(other, none);
    for (args, said) in [
        (&["history", "-n", "0"][..], "must be at least 1"),
        (&["history", "--json", "--csv"], "cannot be given together"),
        (&["history", "--since", "yesterday"], "not a duration"),
    ] {
        let refused = world.canal(args).end().code(125).stderr;
        assert!(refused.contains(said), "{args:?}: {refused}");
    }
}
