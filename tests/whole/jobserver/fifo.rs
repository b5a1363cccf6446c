//! The name of a FIFO, by which newer programs find the jobserver.

use std::os::unix::fs::symlink;

use super::builds::{JOBS, build_with, check_end, go, until_started, without_jobserver, world};
use super::make::NEWER_MAKE;
use crate::world::World;
use crate::world::process::{Cmd, installed_or_skip};

/// Runs a command with the given make as the `make` in its PATH.
fn with_make<'w>(world: &'w World, make: &str, args: &[&str]) -> Cmd<'w> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |dir: &std::path::PathBuf| dir.join(make).is_file();
    let found = std::env::split_paths(&path).find(is_there).unwrap().join(make);
    let bin = world.path("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let link = bin.join("make");
    let _ = std::fs::remove_file(&link);
    symlink(found, link).unwrap();
    let path = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path))).unwrap();
    let lock = ["run", "--jobserver", "-k", "cpu=3"];
    without_jobserver(world.canal(lock.iter().chain(args))).env("PATH", path)
}

#[test]
fn the_jobs_of_a_newer_make_take_slots_though_python_closes_their_descriptors() {
    if !installed_or_skip(NEWER_MAKE, "GNU make 4.4 through Python")
        || !installed_or_skip("python3", "GNU make 4.4 through Python")
    {
        return;
    }
    let world = world();
    let script = "import subprocess; subprocess.run(['make', '-s', 'BUILD=a'], check=True)";
    let running = with_make(&world, NEWER_MAKE, &["--", "python3", "-c", script]).spawn();
    until_started(&world, 3);
    go(&world);
    let ended = running.end().code(0);
    assert!(!ended.stderr.contains("descriptors"), "{}", ended.stderr);
    check_end(&world, JOBS);
}

#[test]
fn a_command_that_waits_is_served_although_a_newer_make_has_all_slots() {
    if !installed_or_skip(NEWER_MAKE, "a command that waits for a build of GNU make 4.4") {
        return;
    }
    let world = world();
    let running = build_with(&world, NEWER_MAKE, "a").spawn();
    until_started(&world, 3);
    let waiting = world.waiter("cpu", &["-j3"], &["cat", "go"]);
    go(&world);
    // The daemon and make compete for each returned job token, so it is open when it is served.
    waiting.end().code(0);
    running.end().code(0);
    check_end(&world, JOBS);
}

#[test]
fn a_newer_make_goes_on_when_the_daemon_is_killed() {
    if !installed_or_skip(NEWER_MAKE, "GNU make 4.4 and a daemon that is killed") {
        return;
    }
    let world = world();
    let running = build_with(&world, NEWER_MAKE, "a").spawn();
    until_started(&world, 3);
    world.kill_daemon_quietly();
    // Its jobs take their job tokens again, so it needs no daemon.
    go(&world);
    running.end().code(0);
    world.status();
    check_end(&world, JOBS);
}

#[test]
fn the_form_of_the_jobserver_follows_the_make_in_the_path() {
    let world = World::with_daemon();
    let is_named = |make: &str| {
        let show = ["--", "sh", "-c", "echo \"$MAKEFLAGS\""];
        let flags = with_make(&world, make, &show).end().code(0).stdout;
        flags.contains("--jobserver-auth=fifo:/")
    };
    assert!(!is_named("false"), "what is not GNU make 4.4 counts as older");
    if installed_or_skip(NEWER_MAKE, "the form of the jobserver for GNU make 4.4") {
        assert!(is_named(NEWER_MAKE));
    }
}

#[test]
fn an_option_states_the_form_of_the_jobserver() {
    let world = World::with_daemon();
    for (option, named) in [("--jobserver=fifo", true), ("--jobserver=pipe", false)] {
        let show = ["run", option, "-k", "cpu=3", "--", "sh", "-c", "echo \"$MAKEFLAGS\""];
        let flags = without_jobserver(world.canal(show)).end().code(0).stdout;
        assert_eq!(flags.contains("--jobserver-auth=fifo:/"), named, "{option}: {flags}");
    }
}

#[test]
fn canal_warns_of_a_number_of_jobs_that_makes_make_ignore_the_jobserver() {
    let world = world();
    go(&world);
    let options = ["run", "--jobserver", "-k", "cpu=3", "--", "make", "-s", "-j2", "BUILD=a"];
    let ended = without_jobserver(world.canal(options)).end().code(0);
    let warning =
        "canal: `-j2` makes make ignore the jobserver: its jobs do not take slots of `cpu`\n";
    assert!(ended.stderr.contains(warning), "{}", ended.stderr);
    let plain = build_with(&world, "make", "b").end().code(0);
    assert_eq!(plain.stderr, "");
}

#[test]
fn canal_says_why_an_older_make_under_python_runs_one_job_at_a_time() {
    let world = World::with_daemon();
    if !installed_or_skip("python3", "an older make under Python") {
        return;
    }
    let ended = with_make(&world, "false", &["--", "python3", "-c", ""]).end().code(0);
    let warning = "canal: python3 closes the descriptors of the jobserver: a make older than 4.4";
    assert!(ended.stderr.contains(warning), "{}", ended.stderr);
}
