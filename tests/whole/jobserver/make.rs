//! Builds of GNU make.

use std::process::Stdio;

use nix::sys::signal::Signal;

use super::builds::{
    JOBS, build, build_with, check_end, go, until_started, without_jobserver, world,
};
use crate::world::World;
use crate::world::process::{installed_or_skip, signal, wait_until};
use crate::world::record::Events;

/// The make whose jobserver has its own FIFO, on a system with another make. `.ci/run` installs it.
pub(super) const NEWER_MAKE: &str = "make-4.4";

#[test]
fn two_builds_share_the_slots_and_never_run_more_jobs_than_there_are() {
    check_two_builds("make", "make");
}

#[test]
fn two_builds_of_a_newer_make_share_the_slots_as_well() {
    if installed_or_skip(NEWER_MAKE, "two builds of GNU make 4.4") {
        check_two_builds(NEWER_MAKE, NEWER_MAKE);
        check_two_builds("make", NEWER_MAKE);
    }
}

fn check_two_builds(first: &str, second: &str) {
    let world = world();
    let first = build_with(&world, first, "a").spawn();
    until_started(&world, 3);
    let second = build_with(&world, second, "b").spawn();
    world.until_waiting("cpu", 1);
    go(&world);
    first.end().code(0);
    second.end().code(0);
    check_end(&world, 2 * JOBS);
}

#[test]
fn a_build_that_comes_later_gets_slots_before_the_first_one_ends() {
    let world = world();
    // The first build waits from its fourth job on, until the second build has had three jobs.
    let makefile = "
all: $(addprefix a-,$(shell seq 24))
a-%:
\t@echo '+ $@' >>events; while ! [ -e go ]; do sleep 0.02; done; \\
\tcase $* in 1|2|3) ;; *) while [ $$(grep -c '^- b-' events) -lt 3 ]; do sleep 0.02; done;; esac; \\
\techo '- $@' >>events
";
    std::fs::write(world.path("work").join("Waiting"), makefile).unwrap();
    let first = without_jobserver(world.canal([
        "run",
        "--jobserver",
        "-k",
        "cpu=3",
        "--",
        "make",
        "-s",
        "-f",
        "Waiting",
    ]));
    let first = first.spawn();
    until_started(&world, 3);
    let second = build(&world, "b").spawn();
    world.until_waiting("cpu", 1);
    go(&world);
    first.end().code(0);
    second.end().code(0);
    check_end(&world, 2 * JOBS);
}

#[test]
fn what_a_killed_build_had_comes_back_when_its_last_job_has_ended() {
    check_killed_build(&world(), "make");
}

#[test]
fn what_a_killed_build_of_a_newer_make_had_comes_back_as_well() {
    if installed_or_skip(NEWER_MAKE, "a killed build of GNU make 4.4") {
        check_killed_build(&world(), NEWER_MAKE);
    }
}

fn check_killed_build(world: &World, make: &str) {
    let killed = build_with(world, make, "a").spawn();
    until_started(world, 3);
    killed.signal(Signal::SIGKILL);
    killed.end();
    // Its jobs keep running, so their slots are in use.
    world.canal(["run", "-n", "-k", "cpu=3", "--", "true"]).end().code(75);
    assert_eq!(world.held("cpu"), 3);
    go(world);
    world.until_held("cpu", 0);
    assert_eq!(Events::of(world).ended(), 3);
    build_with(world, make, "b").end().code(0);
    check_end(world, 3 + JOBS);
}

#[test]
fn a_build_goes_on_when_the_daemon_is_killed() {
    let world = world();
    let running = build(&world, "a").spawn();
    until_started(&world, 3);
    world.kill_daemon_quietly();
    go(&world);
    // Without a daemon its jobs return their job tokens and get no others.
    wait_until("the jobs have ended", || Events::of(&world).ended() >= 3);
    // This starts the next daemon.
    world.status();
    running.end().code(0);
    check_end(&world, JOBS);
}

#[test]
fn a_token_that_no_job_has_keeps_no_request_waiting() {
    let world = world();
    let lock = ["run", "--jobserver", "-k", "cpu=2", "--", "cat"];
    let idle = without_jobserver(world.canal(lock)).stdin(Stdio::piped()).spawn();
    for _ in 0..3 {
        // The daemon offers the job token to the build.
        world.until_held("cpu", 2);
        world.canal(["run", "-n", "-k", "cpu=2", "--", "true"]).end().code(0);
    }
    world.canal(["test", "-k", "cpu=2"]).end().code(0);
    idle.finish().code(0);
    world.until_held("cpu", 0);
}

#[test]
fn a_command_that_waits_goes_before_the_next_job_of_a_build() {
    let world = world();
    let running = build(&world, "a").spawn();
    until_started(&world, 3);
    let waiting = world.waiter("cpu", &["-j3"], &["sh", "-c", "grep -c '^+' events; cat go"]);
    go(&world);
    let started: usize = waiting.end().code(0).stdout.trim().parse().unwrap();
    assert!(started < JOBS, "the command had to wait for all jobs");
    running.end().code(0);
    check_end(&world, JOBS);
}

#[test]
fn a_job_that_is_killed_costs_the_build_no_slot() {
    let world = world();
    let makefile = "
all: one $(addprefix a-,$(shell seq 3))
one:
\t-@echo $$$$ >pid; exec sleep 600
a-%:
\t@echo '+ $@' >>events; while ! [ -e go ]; do sleep 0.02; done; echo '- $@' >>events
";
    std::fs::write(world.path("work").join("Makefile"), makefile).unwrap();
    let running = build(&world, "a").spawn();
    wait_until("the job has started", || world.read("pid").ends_with('\n'));
    until_started(&world, 2);
    signal(world.read("pid").trim().parse().unwrap(), Signal::SIGKILL);
    until_started(&world, 3);
    go(&world);
    running.end().code(0);
    check_end(&world, 3);
}
