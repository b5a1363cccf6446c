//! How jobs end, and how `canal wait` ends.

use nix::sys::signal::Signal;

use crate::backend::over_engines;
use crate::whole::jobs::{holder, submitted, supervisor};
use crate::world::World;
use crate::world::process::{self, wait_until};

over_engines! {
    "any host may wait for a job of another":
        a_command_whose_supervisor_is_killed_goes_on_and_its_end_is_told_or_said_to_be_unknown;
}

#[test]
fn a_wait_ends_as_the_job_did_however_often() {
    let world = World::with_daemon().on_one_host();
    let fails = submitted(&world, &["-k", "a", "-c", "exit 7"]);
    let killed = submitted(&world, &["-k", "a", "-c", "kill -9 $$"]);
    let limited = submitted(&world, &["-k", "a", "--max-run", "10ms", "--", "sleep", "600"]);
    let good = submitted(&world, &["-k", "a", "--", "true"]);
    for _ in 0..2 {
        world.canal(["wait", &fails]).end().code(7);
        assert_eq!(world.canal(["wait", &killed]).end().signal, Some(9));
        world.canal(["wait", &limited]).end().code(124);
        world.canal(["wait", &good]).end().code(0);
    }
    // The first failure counts, in the order of the command line.
    world.canal(["wait", &good, &limited, &fails]).end().code(124);
    let all = world.canal(["wait", "--json", &good, &fails, &killed]).end().code(7);
    let expected = [
        format!(r#"{{"job":{good},"how":"exited","exit":0,"signal":null}}"#),
        format!(r#"{{"job":{fails},"how":"exited","exit":7,"signal":null}}"#),
        format!(r#"{{"job":{killed},"how":"killed","exit":null,"signal":9}}"#),
    ];
    assert_eq!(all.stdout.lines().collect::<Vec<_>>(), expected);
    let none = world.canal(["wait", &good, "99999"]).end().code(125);
    assert!(none.stderr.contains("you have no job 99999"), "{none:?}");
}

#[test]
fn a_job_that_never_ran_is_75() {
    let world = World::with_daemon().on_one_host();
    let busy = world.holder(&["-k", "a"]);
    let late = submitted(&world, &["-k", "a", "-w", "50ms", "--", "true"]);
    world.canal(["wait", &late]).end().code(75);
    let log = world.canal(["log", &late]).end().code(0).stdout;
    assert!(log.starts_with("canal: ") && log.contains("`a`"), "{log}");
    let removed = submitted(&world, &["-k", "a", "--", "true"]);
    let waiter = world.key("a").waiters[0].pid.to_string();
    world.canal(["kill", "--yes", "--pid", &waiter]).end().code(0);
    let ended = world.canal(["wait", "--json", &removed]).end().code(75);
    assert_eq!(ended.json()["how"], "never-ran");
    busy.finish();
}

#[test]
fn a_wait_begins_before_the_end_and_lasts_until_then() {
    let world = World::with_daemon().on_one_host();
    let job = submitted(&world, &["-k", "a", "--", "sleep", "600"]);
    let mut wait = world.canal(["wait", &job]).spawn();
    wait_until("it sleeps", || process::state(wait.pid()) == Some('S'));
    assert!(!wait.has_ended());
    let command = holder(&world, "a");
    // A job that is ended before its command begins has not been killed.
    wait_until("its command runs", || process::runs_another_program(command));
    process::signal(command, Signal::SIGTERM);
    assert_eq!(wait.end().signal, Some(15));
}

#[test]
fn a_supervisor_that_is_killed_takes_its_waiting_job_with_it() {
    let world = World::with_daemon().on_one_host();
    let busy = world.holder(&["-k", "a"]);
    let job = submitted(&world, &["-k", "a", "--", "true"]);
    let waiter = world.key("a").waiters[0].pid.cast_signed();
    process::signal(supervisor(waiter), Signal::SIGKILL);
    world.until_waiting("a", 0);
    world.canal(["wait", &job]).end().code(75);
    busy.finish();
}

#[test]
fn a_command_whose_supervisor_is_killed_goes_on_and_its_end_is_told_or_said_to_be_unknown() {
    let world = World::with_daemon().on_one_host();
    let go = world.path("go");
    let begun = world.path("begun");
    let script = "touch \"$1\"; until [ -e \"$0\" ]; do sleep 0.01; done; echo done; exit 5";
    let (of_go, of_begun) = (go.to_str().unwrap(), begun.to_str().unwrap());
    let job = submitted(&world, &["-k", "a", "--", "sh", "-c", script, of_go, of_begun]);
    let command = holder(&world, "a");
    // Until the command is executed, it is killed with its supervisor.
    wait_until("the command has begun", || begun.exists());
    let supervised_by = supervisor(command);
    process::signal(supervised_by, Signal::SIGKILL);
    wait_until("it is an orphan", || supervisor(command) != supervised_by);
    let mut wait = world.canal(["wait", "--json", &job]).spawn();
    assert!(!wait.has_ended() && process::alive(command));
    std::fs::write(&go, "").unwrap();
    let ended = wait.end();
    match ended.json()["how"].as_str() {
        Some("exited") => assert_eq!(ended.code, Some(5), "{ended:?}"),
        Some("unknown") => {
            assert!(ended.stderr.contains("its supervisor was killed"), "{ended:?}");
            assert_eq!(ended.code, Some(125), "{ended:?}");
        }
        _ => panic!("{ended:?}"),
    }
    assert_eq!(world.canal(["log", &job]).end().code(0).stdout, "done\n");
}
