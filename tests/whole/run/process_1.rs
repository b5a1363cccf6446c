//! canal as process 1 of a pid namespace, like the entry point of a container.

use std::io::Write as _;
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::lease::Lease;
use crate::world::process::{
    Cmd, Proc, alive, children, installed_or_skip, root_or_skip, signal, skipped, wait_until,
};
use crate::world::{World, canal};

/// The signals with which container engines and people end a container.
const ENDING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

/// A program as process 1 of a pid namespace; `None` if this machine does not permit namespaces.
fn as_process_1<'w>(world: &'w World, words: &[&str]) -> Option<Cmd<'w>> {
    let what = "canal as process 1";
    if !root_or_skip(what) || !installed_or_skip("unshare", what) {
        return None;
    }
    let unshare = |words: &[&str]| {
        let options = ["-m", "-p", "-f", "--mount-proc", "--kill-child"];
        world.program("unshare", options.iter().chain(words))
    };
    let tried = unshare(&["true"]).end();
    if tried.code != Some(0) {
        skipped(&format!("namespaces are not permitted here: {what}: {}", tried.stderr.trim()));
        return None;
    }
    Some(unshare(words))
}

fn canal_as_process_1<'w>(world: &'w World, args: &[&str]) -> Option<Cmd<'w>> {
    let words: Vec<&str> = [canal().to_str().unwrap()].iter().chain(args).copied().collect();
    as_process_1(world, &words)
}

/// The pid of the namespace's process 1, as seen from outside.
fn pid(unshare: &Proc) -> i32 {
    let parent = unshare.child.id().cast_signed();
    wait_until("process 1 was started", || !children(parent).is_empty());
    children(parent)[0]
}

/// Checks that each signal ends what `start` started, once it is `ready`, with the exit code that a
/// shell reports.
#[track_caller]
fn assert_ends(start: impl Fn() -> Option<Proc>, mut ready: impl FnMut(&Proc) -> bool) {
    for which in ENDING {
        let Some(process) = start() else { return };
        wait_until("it is ready", || ready(&process));
        signal(pid(&process), which);
        process.end().code(128 + which as i32);
    }
}

#[test]
fn a_signal_ends_what_waits_for_a_lock_and_withdraws_its_request() {
    let world = World::with_daemon();
    let _holder = world.holder(&["-k", "a"]);
    for args in [
        &["run", "-k", "a", "--", "true"] as &[&str],
        &["run", "--with-children", "-k", "a", "--", "true"],
        &["run", "--max-run", "1h", "-k", "a", "--", "true"],
        &["run", "-v", "--wait", "1h", "-k", "a", "--", "true"],
        &["acquire", "--ttl", "1h", "-k", "a"],
    ] {
        let start = || {
            world.until_waiting("a", 0);
            Some(canal_as_process_1(&world, args)?.spawn())
        };
        assert_ends(start, |_| world.key("a").waiting == 1);
    }
    world.until_waiting("a", 0);
}

#[test]
fn a_signal_ends_what_reports_until_it_is_ended() {
    let world = World::with_daemon();
    let _holder = world.holder(&["-k", "a"]);
    for args in [&["status", "--watch"] as &[&str], &["leader", "--watch", "a"]] {
        let start = || Some(canal_as_process_1(&world, args)?.spawn());
        assert_ends(start, |process| !process.stdout().is_empty());
    }
    let lease = Lease::take(&world, "1h", &["-k", "b"]);
    let script = "sleep 600 & exec canal renew --json --while $!";
    let renew = || {
        let renew = as_process_1(&world, &["sh", "-c", script])?;
        Some(renew.env("CANAL_HANDLE", &lease.handle).spawn())
    };
    assert_ends(renew, |process| process.stdout().contains("renewals"));
    let bridge = || {
        let bridge = canal_as_process_1(&world, &["bridge"])?;
        let mut bridge = bridge.stdin(Stdio::piped()).spawn();
        let call = b"{\"method\":\"org.varlink.service.GetInfo\"}\0";
        bridge.child.stdin.as_mut().unwrap().write_all(call).unwrap();
        Some(bridge)
    };
    assert_ends(bridge, |process| process.stdout().contains("vendor"));
}

#[test]
fn the_command_finds_the_signals_as_the_caller_set_them() {
    let world = World::with_daemon();
    let shown = |run: &str| {
        let script = format!("trap '' HUP; exec {run} cat /proc/self/status");
        let ended = as_process_1(&world, &["sh", "-c", &script])?.end().code(0);
        let signals = |line: &&str| line.starts_with("Sig");
        Some(ended.stdout.lines().filter(signals).skip(1).collect::<Vec<_>>().join("\n"))
    };
    let without = shown("");
    assert!(without.as_ref().is_none_or(|without| without.contains("SigCgt")));
    assert_eq!(shown("canal run -k a --"), without);
}

#[test]
fn a_supervisor_reaps_what_it_inherits_and_passes_on_the_status_of_its_command() {
    let world = World::with_daemon();
    // One orphan of the shell, which ends at once, and one that process 1 had before it became
    // canal.
    let script = "sleep 0 & exec canal run --max-run 1h -k a -c '(sleep 0 & echo $! >orphan); touch ready; until [ -e end ]; do sleep 0.01; done; exit 7'";
    let Some(run) = as_process_1(&world, &["sh", "-c", script]) else { return };
    let run = run.spawn();
    wait_until("the command runs", || world.path("work").join("ready").exists());
    let supervisor = pid(&run);
    wait_until("only the command is left", || {
        let left = children(supervisor);
        left.len() == 1 && alive(left[0])
    });
    std::fs::write(world.path("work").join("end"), "").unwrap();
    run.end().code(7);
}

#[test]
fn a_supervisor_passes_a_signal_on_and_ends_with_the_code_of_that_death() {
    let world = World::with_daemon();
    let args = ["run", "--max-run", "1h", "-k", "a", "-c", "echo on; exec sleep 600"];
    let start = || Some(canal_as_process_1(&world, &args)?.spawn());
    assert_ends(start, |process| process.stdout() == "on\n");
    world.until_idle();
}
