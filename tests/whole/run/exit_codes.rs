//! The exit codes of `canal run`.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::world::World;
use crate::world::executable::executable;
use crate::world::process::{BOUND, Ended, in_time, wait_until};

fn run(world: &World, options: &[&str], command: &[&str]) -> Ended {
    let mut args = vec!["run", "-k", "x"];
    args.extend(options);
    args.push("--");
    args.extend(command);
    world.canal(args).end()
}

#[test]
fn the_exit_code_of_the_command_is_passed_through() {
    let world = World::with_daemon();
    for options in [&[][..], &["--max-run", "60"]] {
        for code in [0, 1, 7, 75, 124, 255] {
            let ended = run(&world, options, &["sh", "-c", &format!("exit {code}")]).code(code);
            assert_eq!(ended.stderr, "", "canal has nothing to say about the command's own code");
        }
    }
}

#[test]
fn death_by_a_signal_is_passed_on_as_that_death() {
    let world = World::with_daemon();
    for options in [&[][..], &["--max-run", "60"]] {
        for (name, number) in [("TERM", 15), ("KILL", 9), ("INT", 2), ("SEGV", 11), ("PIPE", 13)] {
            let ended = run(&world, options, &["sh", "-c", &format!("kill -{name} $$")]);
            assert_eq!(ended.signal, Some(number), "{options:?} {name}: {ended:?}");
        }
    }
    world.until_idle();
}

#[test]
fn a_missing_command_is_127_before_any_queueing() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    // A folder of PATH without search permission would make it 126, as with execvp(3).
    let nowhere = world.canal(["run", "-k", "x", "--", "no-such-command-anywhere"]);
    let ended = nowhere.env("PATH", "/usr/bin:/bin").end().code(127);
    assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
    assert!(ended.stderr.contains("no-such-command-anywhere"), "{ended:?}");
    run(&world, &[], &["./no/such/file"]).code(127);
    holder.finish();
}

#[test]
fn a_command_that_cannot_be_executed_is_126() {
    let world = World::with_daemon();
    fs::write(world.path("work/data"), "x").unwrap();
    let ended = run(&world, &[], &["./data"]).code(126);
    assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
    run(&world, &[], &["/"]).code(126);
}

#[test]
fn a_command_that_vanishes_during_the_wait_is_127_and_the_lock_is_released() {
    let world = World::with_daemon();
    let script = world.path("work/script");
    executable(&script, "#!/bin/sh\n");
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &[], &["./script"]);
    fs::remove_file(&script).unwrap();
    holder.finish();
    waiter.end().code(127);
    run(&world, &["-n"], &["true"]).code(0);
}

#[test]
fn a_bad_interpreter_fails_as_it_does_without_canal() {
    let world = World::with_daemon();
    let script = world.path("work/script");
    executable(&script, "#!/no/such/interpreter\n");
    run(&world, &[], &["./script"]).code(127);
    run(&world, &["-n"], &["true"]).code(0);
}

#[test]
fn a_script_without_a_first_line_runs_in_a_shell() {
    let world = World::with_daemon();
    let script = world.path("work/script");
    executable(&script, "echo \"ran $1\"\n");
    for options in [&[][..], &["--max-run", "60"]] {
        assert_eq!(run(&world, options, &["./script", "well"]).code(0).stdout, "ran well\n");
    }
}

#[test]
fn a_string_runs_in_a_shell() {
    let world = World::with_daemon();
    let ended = world.canal(["run", "-k", "x", "-c", "echo $((1 + 1)); exit 3"]).end().code(3);
    assert_eq!(ended.stdout, "2\n");
}

#[test]
fn busy_is_75_and_names_the_holder() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    for options in [["-n", "-q"], ["-w0", "-q"], ["-w0.1", "-q"]] {
        assert_eq!(run(&world, &options, &["true"]).code(75).stderr, "");
    }
    for option in ["-n", "-w0", "-w0.1"] {
        let ended = run(&world, &[option], &["true"]).code(75);
        assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
        assert!(ended.stderr.contains(&holder.pid_text()), "{ended:?}");
        assert!(ended.stderr.contains("cat"), "{ended:?}");
    }
    holder.finish();
}

#[test]
fn failures_and_deadlocks_are_said_with_q_and_hidden_with_qq() {
    let world = World::with_daemon();
    let own = "canal acquire -q -k y=1x1 --pid $$; canal acquire $0 -k y=1x1 --pid $$";
    for (option, is_silent) in [("-q", false), ("-qq", true)] {
        for (ended, code) in [
            (run(&world, &[option], &["no-such-command"]), 127),
            (run(&world, &["--max-run", "0.01", option], &["sleep", "600"]), 124),
            (run(&world, &[option, "--priority", "x"], &["true"]), 125),
            (world.program("sh", ["-c", own, option]).end(), 75),
        ] {
            let said = ended.code(code).stderr;
            assert_eq!(said.is_empty(), is_silent, "{code} with {option}: {said}");
        }
    }
}

#[test]
fn the_code_for_a_conflict_can_be_chosen() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    run(&world, &["-n", "-E", "9"], &["true"]).code(9);
    run(&world, &["-w", "0.1", "-E", "9"], &["true"]).code(9);
    let quiet = run(&world, &["-n", "-E", "0"], &["true"]).code(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""), "as cron likes it");
    let pid = std::process::id().to_string();
    let acquire = ["acquire", "-k", "y", "-n", "-E", "0", "--pid", pid.as_str()];
    let ended = world.canal(acquire).end().code(125);
    assert!(ended.stderr.starts_with("canal: "), "it would mean: go on unlocked; {ended:?}");
    assert_eq!(world.held("y"), 0);
    holder.finish();
}

#[test]
fn a_deadlock_with_its_own_session_is_75_despite_a_conflict_code() {
    let world = World::with_daemon();
    let script =
        "canal acquire -q -k x=1x1 --pid $$ || exit 1; canal acquire -E 9 -k x=1x1 --pid $$";
    let ended = world.sh(script).end().code(75);
    assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
    let json = "canal acquire -q -k x=1x1 --pid $$; canal acquire -q --json -k x=1x1 --pid $$";
    assert_eq!(world.sh(json).end().code(75).json()["refused"], "deadlock");
}

#[test]
fn a_command_that_runs_too_long_is_ended_with_124() {
    let world = World::with_daemon();
    let begun = Instant::now();
    let ended = run(&world, &["--max-run", "0.2"], &["sleep", "60"]).code(124);
    assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
    let stubborn = "trap '' TERM; while :; do sleep 0.05; done";
    let kill = ["--max-run", "0.2", "--kill-after", "0.2"];
    run(&world, &kill, &["sh", "-c", stubborn]).code(124);
    let polite = "trap 'echo bye; exit 3' USR1; while :; do sleep 0.05; done";
    // On a busy machine the time can pass before the shell has set its trap.
    in_time(Duration::from_millis(200), |limit| {
        let limit = format!("{}ms", limit.as_millis());
        let usr1 = ["--max-run", limit.as_str(), "--signal", "USR1"];
        let ended = run(&world, &usr1, &["sh", "-c", polite]).code(124);
        (!ended.stdout.is_empty()).then(|| assert_eq!(ended.stdout, "bye\n"))
    });
    assert!(begun.elapsed() < BOUND);
    world.until_idle();
}

#[test]
fn the_wait_does_not_count_against_the_run() {
    in_time(Duration::from_millis(600), |run| {
        let world = World::with_daemon();
        let holder = world.holder(&["-k", "x"]);
        let limit = format!("{}ms", run.as_millis());
        let waiter = world.waiter("x", &["--max-run", &limit], &["echo", "done"]);
        let begun = Instant::now();
        wait_until("more than the time for the run is over", || begun.elapsed() > run * 3 / 2);
        let free = Instant::now();
        holder.finish();
        let ended = waiter.end();
        (ended.code == Some(0) || free.elapsed() < run).then(|| {
            assert_eq!(ended.code(0).stdout, "done\n");
        })
    });
}

#[test]
fn a_signal_to_the_parent_of_a_limited_run_reaches_the_command() {
    let world = World::with_daemon();
    let body = "trap 'echo term; exit 5' TERM; echo up; while :; do sleep 0.02; done";
    let run = world.canal(["run", "-k", "x", "--max-run", "60", "--", "sh", "-c", body]).spawn();
    wait_until("it is up", || run.stdout().contains("up"));
    run.signal(Signal::SIGTERM);
    assert_eq!(run.end().code(5).stdout, "up\nterm\n");
}

#[test]
fn a_failure_of_canals_own_is_125() {
    let world = World::new();
    for args in [
        &["run", "--", "true"][..],
        &["run", "-k", "x", "--no-such-option", "--", "true"],
        &["run", "-k", "x"],
        &["run", "-k", "x", "--timeout", "5", "--", "true"],
        &["run", "--no-start", "-k", "x", "--", "true"],
        &["no-such-command"],
    ] {
        let ended = world.canal(args).end().code(125);
        assert!(ended.stderr.starts_with("canal: "), "{args:?}: {ended:?}");
        assert!(!ended.stderr.contains("panicked"), "{args:?}: {ended:?}");
    }
}

#[test]
fn options_end_at_the_command() {
    let world = World::with_daemon();
    let ended = world.canal(["run", "-k", "x", "echo", "-n", "-k", "y", "--", "z"]).end().code(0);
    assert_eq!(ended.stdout, "-k y -- z");
}
