//! What a submission prints, and what it does if there is no job.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::backend::over_engines;
use crate::whole::jobs::{holder, report, submitted};
use crate::world::World;
use crate::world::journal_only;
use crate::world::process::{self, wait_until};

over_engines! {
    "the engine numbers requests":
        a_submission_prints_number_position_and_log_once_it_is_queued;
}

/// The files of the world's jobs.
fn files(world: &World) -> Vec<String> {
    let Ok(entries) = fs::read_dir(world.runtime().join("jobs")) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_submission_prints_number_position_and_log_once_it_is_queued() {
    let world = World::with_daemon().on_one_host();
    let first = world.canal(["submit", "-k", "x", "--", "sleep", "600"]).end().code(0);
    let words: Vec<_> = first.stdout.split_whitespace().collect();
    let [number, position, log] = words[..] else { panic!("{first:?}") };
    assert_eq!((position, first.stderr.as_str(), first.stdout.lines().count()), ("0", "", 1));
    assert_eq!(Path::new(log), world.runtime().join("jobs").join(format!("{number}.log")));
    assert_eq!(fs::metadata(log).unwrap().permissions().mode() & 0o7777, 0o600);
    for position in 1..=3 {
        // It is in the queue already, without a wait.
        let queued = report(&world, &["-k", "x", "--", "true"]);
        assert_eq!(queued["position"], position);
        assert_eq!(world.key("x").waiting, position);
        assert_eq!(queued["session"], format!("s{}", queued["job"]));
    }
    let waiting = world.status_json()["keys"][0]["waiters"][0]["session"].clone();
    assert_ne!(waiting, format!("s{number}"));
    assert_eq!(world.key("x").holders[0].session, format!("s{number}"));
}

#[test]
fn run_detach_is_the_same_and_its_options_need_it() {
    let world = World::with_daemon().on_one_host();
    let line = world.canal(["run", "--detach", "-k", "x", "--", "sh", "-c", "exit 4"]).end();
    let line = line.code(0).stdout;
    world.canal(["wait", line.split(' ').next().unwrap()]).end().code(4);
    for option in [&["--json"][..], &["--log", "f"]] {
        let args = [&["run", "-k", "x"], option, &["--", "true"]].concat();
        let ended = world.canal(args).end().code(125);
        assert!(ended.stderr.contains(&format!("{} needs --detach", option[0])), "{ended:?}");
    }
    let ended = world.canal(["submit", "-k", "x", "--on", "a,b", "--", "true"]).end().code(125);
    assert!(ended.stderr.contains("--detach cannot be used with --on"), "{ended:?}");
}

#[test]
fn what_is_refused_leaves_no_job_and_ends_as_a_run_would() {
    let world = World::with_daemon().on_one_host();
    let busy = world.holder(&["-k", "x"]);
    let refused = world.canal(["submit", "-n", "-k", "x", "--", "true"]).end().code(75);
    assert!(refused.stderr.contains("1 of 1 slots held"), "{refused:?}");
    assert_eq!(refused.stdout, "");
    let refused = world.canal(["submit", "--json", "-n", "-k", "x", "--", "true"]).end().code(75);
    assert_eq!(refused.json()["refused"], "full", "{refused:?}");
    let skipped = ["submit", "--json", "-n", "-E", "0", "-k", "x", "--", "true"];
    assert_eq!(world.canal(skipped).end().code(0).json()["refused"], "full");
    world.canal(["submit", "-n", "-E", "9", "-k", "x", "--", "true"]).end().code(9);
    world.canal(["submit", "-k", "x:2", "-j", "1", "--", "true"]).end().code(125);
    let typo = world.canal(["submit", "-k", "x", "--", "nonesuch"]).end().code(127);
    assert!(typo.stderr.contains("nonesuch: command not found"), "{typo:?}");
    let log = world.path("missing/log");
    let log = log.to_str().unwrap();
    let unwritable = world.canal(["submit", "-k", "x", "--log", log, "--", "true"]).end().code(125);
    assert!(unwritable.stderr.contains(log), "{unwritable:?}");
    assert_eq!(world.key("x").waiting, 0);
    wait_until("nothing is left", || files(&world).is_empty());
    busy.finish();
}

#[test]
fn a_submission_that_is_killed_before_it_knows_the_number_leaves_no_job() {
    if journal_only("the daemon is stopped") {
        return;
    }
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let daemon = world.daemon_pid();
    process::signal(daemon, Signal::SIGSTOP);
    let marker = world.path("").display().to_string();
    let submission = world.canal(["submit", "-k", "x", "--", "true", &marker]).spawn();
    let is_marked = |process: &fs::DirEntry| {
        let words = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
        words.split('\0').any(|word| word == marker)
    };
    // Until the job is a process of its own, there is none that could record its end.
    wait_until("the job has its supervisor and its process", || {
        fs::read_dir("/proc").unwrap().flatten().filter(is_marked).count() >= 3
    });
    submission.kill();
    process::signal(daemon, Signal::SIGCONT);
    wait_until("the job has ended", || {
        let job = |name: &String| name.ends_with(".job");
        let path = |name: &String| world.runtime().join("jobs").join(name);
        files(&world).iter().filter(|name| job(name)).all(|name| {
            let text = fs::read_to_string(path(name)).unwrap_or_default();
            text.contains("\"exit\":125")
        })
    });
    assert_eq!(world.key("x").waiting, 0);
    holder.finish();
}

#[test]
fn the_output_goes_to_the_log_and_nothing_is_read() {
    let world = World::with_daemon().on_one_host();
    let log = world.path("all.log");
    let log = log.to_str().unwrap();
    let script = "echo to stdout; echo to stderr >&2; cat; test ! -t 0; ps -o tty= -p $$";
    for _ in 0..2 {
        let job = submitted(&world, &["-k", "x", "--log", log, "-c", script]);
        world.canal(["wait", &job]).end().code(0);
    }
    let lines = fs::read_to_string(log).unwrap();
    let lines: Vec<_> = lines.lines().map(str::trim).collect();
    assert_eq!(lines, ["to stdout", "to stderr", "?", "to stdout", "to stderr", "?"]);
    let printed = world.canal(["log", "x"]).end().code(0).stdout;
    assert_eq!(printed, fs::read_to_string(log).unwrap());
}

/// Whether a process has this file open.
fn is_open(file: &Path) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let descriptors =
        processes.filter_map(|process| fs::read_dir(process.path().join("fd")).ok()).flatten();
    descriptors.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|it| it == file))
}

/// Neither while the job waits nor while it runs, on any kernel.
#[test]
fn a_job_keeps_no_descriptor_of_its_caller() {
    for kernel in ["", "5.4"] {
        let world = World::with_daemon().on_one_host();
        let file = world.path("work").join("held");
        let holding = world.holder(&["-k", "x"]);
        // 9 as flock(1) uses it, and the standard input closed.
        let script = "exec 9>held 0<&-
            canal submit -k x -- sh -c 'readlink /proc/self/fd/0; echo runs; exec sleep 600'";
        let submitted = world.sh(script).env("CANAL_KERNEL", kernel).end().code(0).stdout;
        assert!(!is_open(&file), "the job waits");
        let own = fs::File::open(&file).unwrap();
        assert!(is_open(&file), "the test would notice it");
        drop(own);
        holding.finish();
        let job = submitted.split(' ').next().unwrap();
        let log = || world.canal(["log", job]).end().stdout;
        wait_until("the job runs", || log().ends_with("runs\n"));
        assert!(!is_open(&file), "the job runs");
        assert_eq!(log(), "/dev/null\nruns\n");
    }
}

#[test]
fn a_log_is_followed_until_the_job_ends() {
    let world = World::with_daemon().on_one_host();
    let go = world.path("go");
    let script = "echo one; until [ -e \"$0\" ]; do sleep 0.01; done; printf 'two\\377'; exit 3";
    let args = ["-k", "x", "--", "sh", "-c", script, go.to_str().unwrap()];
    let job = submitted(&world, &args);
    let follower = world.canal(["log", "-f", &format!("%{job}")]).spawn();
    wait_until("the first line is printed", || follower.stdout() == "one\n");
    fs::write(&go, "").unwrap();
    let ended = follower.end().code(0);
    assert_eq!(ended.stdout, "one\ntwo\u{fffd}");
    let latest = world.canal(["log"]).end().code(0);
    assert_eq!(latest.stdout, ended.stdout);
    let none = world.canal(["log", "99999"]).end().code(125);
    assert!(none.stderr.contains("you have no job 99999"), "{none:?}");
    world.canal(["log", "nothing"]).end().code(125);
}

#[test]
fn a_job_within_a_run_is_a_session_of_its_own() {
    let world = World::with_daemon().on_one_host();
    let outer =
        world.canal(["run", "-k", "x", "--", "sh", "-c", "canal submit -k x -- true"]).end();
    let outer = outer.code(0);
    // In the session of the outer command it would share the slot.
    let words: Vec<_> = outer.stdout.split_whitespace().collect();
    assert_eq!(words[1], "1", "{outer:?}");
    world.canal(["wait", words[0]]).end().code(0);
}

#[test]
fn a_reboot_does_not_make_numbers_come_again() {
    if journal_only("an engine numbers requests") {
        return;
    }
    let world = World::with_daemon();
    let first = submitted(&world, &["-k", "x", "--", "echo", "before"]);
    world.canal(["wait", &first]).end().code(0);
    world.canal(["daemon", "--stop"]).end().code(0);
    for name in ["journal.0", "journal.1"] {
        fs::remove_file(world.runtime().join(name)).unwrap();
    }
    let second = submitted(&world, &["-k", "x", "--", "sleep", "600"]);
    assert!(second.parse::<u64>().unwrap() > first.parse::<u64>().unwrap());
    assert_eq!(world.canal(["log", &first]).end().code(0).stdout, "before\n");
    assert!(process::alive(holder(&world, "x")));
}
