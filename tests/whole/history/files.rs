//! The files of the history: they outlive daemons, and damaged files stop no daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::backend::over_engines;
use crate::whole::history::{records, until_recorded};
use crate::world::process::{Proc, wait_until};
use crate::world::{World, journal_only};

over_engines! {
    "what a daemon of an engine records before it joins again":
        the_history_outlives_daemons_that_are_stopped_or_killed;
}

/// The files of the history, oldest first.
fn files(world: &World) -> Vec<PathBuf> {
    let entries = fs::read_dir(world.runtime().join("history")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| !path.ends_with("open")).collect();
    files.sort();
    files
}

fn run_some(world: &World, key: &str, count: usize) {
    for _ in 0..count {
        world.canal(["run", "-k", key, "--", "true"]).end().code(0);
    }
}

#[test]
fn the_history_outlives_daemons_that_are_stopped_or_killed() {
    let world = World::with_daemon().on_one_host();
    run_some(&world, "x", 2);
    // A daemon that stops on request first writes the remaining records.
    world.canal(["daemon", "--stop"]).end().code(0);
    until_recorded(&world, &["x"], 2);
    run_some(&world, "x", 1);
    let before = until_recorded(&world, &["x"], 3);
    world.kill_daemon();
    assert_eq!(records(&world, &["x"]), before);
    run_some(&world, "x", 1);
    let after = until_recorded(&world, &["x"], 4);
    assert_eq!(after[..3], before);
}

#[test]
fn a_daemon_killed_again_and_again_loses_at_most_what_is_younger_than_a_second() {
    let world = World::with_daemon().on_one_host();
    let mut known = Vec::new();
    for _ in 0..4 {
        run_some(&world, "x", 3);
        let count = known.len() + 1;
        wait_until("some of them are recorded", || records(&world, &["x"]).len() >= count);
        known = records(&world, &["x"]);
        run_some(&world, "x", 1);
        world.kill_daemon();
        let found = records(&world, &["x"]);
        assert_eq!(found[..known.len()], known, "what was seen once stays");
        known = found;
    }
    assert_eq!(world.held("x"), 0);
}

#[test]
fn what_ended_while_no_daemon_ran_is_recorded_by_the_next_one() {
    if journal_only("over an engine the watcher starts the next daemon at once") {
        return;
    }
    let world = World::with_daemon();
    let (holder, waiter) = holder_and_stopped_waiter(&world);
    world.kill_daemon_quietly();
    holder.kill();
    waiter.kill();
    assert_unseen(&until_recorded(&world, &["x"], 2), "ended");
    let shown = world.canal(["history", "x"]).end().code(0).stdout;
    let hows = |how: &str| shown.lines().filter(|line| line.contains(how)).count();
    assert_eq!((hows("  ended (exit status unknown)  "), hows("  gave up  ")), (1, 1), "{shown}");
}

/// A process that holds `x`, and another one that waits for it and cannot attach again.
fn holder_and_stopped_waiter(world: &World) -> (Proc, Proc) {
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &[], &["true"]);
    waiter.stop();
    (holder, waiter)
}

/// Checks that these are a hold and a wait whose end no daemon saw.
#[track_caller]
fn assert_unseen(found: &[Value], how: &str) {
    assert!(found.iter().all(|it| it["how"] == how && it["at_least"] == true), "{found:?}");
    let (held, waited): (Vec<_>, Vec<_>) = found.iter().partition(|it| it["held_ms"].is_u64());
    assert_eq!((held.len(), waited.len()), (1, 1), "{found:?}");
    assert!(held[0]["token"].is_u64() && waited[0]["token"].is_null(), "{found:?}");
}

/// Simulates a reboot of a machine whose socket is in memory: only the state remains, and it
/// belongs to another boot.
fn reboot(world: &World) {
    for name in ["journal.0", "journal.1"] {
        fs::remove_file(world.runtime().join(name)).unwrap();
    }
    let open = world.runtime().join("history/open");
    let boot_id = fs::read("/proc/sys/kernel/random/boot_id").unwrap();
    let mut bytes = fs::read(&open).unwrap();
    let mut places = bytes.windows(36);
    let at = places.position(|place| boot_id.starts_with(place)).unwrap();
    bytes[at..at + 36].fill(b'x');
    fs::write(open, bytes).unwrap();
}

#[test]
fn what_a_reboot_ended_is_recorded_once_by_the_next_daemon() {
    if journal_only("over an engine the next daemon of this boot still has the holds") {
        return;
    }
    let world = World::with_daemon();
    let (holder, waiter) = holder_and_stopped_waiter(&world);
    world.canal(["acquire", "--ttl", "1h", "lease"]).end().code(0);
    world.canal(["daemon", "--stop"]).end().code(0);
    holder.kill();
    waiter.kill();
    reboot(&world);
    let found = until_recorded(&world, &[], 2);
    assert_unseen(&found, "reboot");
    assert_eq!(world.held("lease"), 1, "leases outlive the machine");
    let shown = world.canal(["history", "x"]).end().code(0).stdout;
    let rows = shown.lines().filter(|line| line.contains("  reboot  ") && line.contains("s+"));
    assert_eq!(rows.count(), 2, "{shown}");
    let counts = world.canal(["stats", "x", "--json"]).end().code(0).json();
    assert_eq!(counts["all"]["count"], 2, "{counts}");
    assert_eq!(counts["hold_bins"], json!([]), "nobody knows how long it was: {counts}");
    // Each next daemon has read the same file, or no file.
    world.kill_daemon_quietly();
    assert_eq!(until_recorded(&world, &[], 2), found);
    world.canal(["daemon", "--stop"]).end().code(0);
    assert_eq!(until_recorded(&world, &[], 2), found);
}

#[test]
fn a_damaged_file_is_set_aside_with_a_word() {
    let world = World::with_daemon().on_one_host();
    run_some(&world, "x", 3);
    until_recorded(&world, &["x"], 3);
    let file = files(&world).pop().unwrap();
    world.kill_daemon_quietly();
    let mut bytes = fs::read(&file).unwrap();
    bytes[30] ^= 1;
    fs::write(&file, bytes).unwrap();
    run_some(&world, "x", 1);
    until_recorded(&world, &["x"], 1);
    let name = format!("{} is damaged", file.display());
    let told = world.canal(["status", "-v"]).end().code(0).stdout;
    assert!(told.contains(&name), "{told}");
    assert!(world.runtime().join("history/damaged").exists());
    // A directory in place of a file, and garbage.
    world.kill_daemon_quietly();
    for file in files(&world) {
        fs::remove_file(&file).unwrap();
    }
    fs::create_dir(world.runtime().join("history/0000000000000005")).unwrap();
    fs::write(world.runtime().join("history/0000000000000001"), "garbage").unwrap();
    run_some(&world, "x", 1);
    until_recorded(&world, &["x"], 1);
}

#[test]
fn a_history_that_cannot_be_written_is_noted_and_in_nobodys_way() {
    let world = World::new();
    fs::create_dir_all(world.runtime()).unwrap();
    fs::set_permissions(world.runtime(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(world.runtime().join("history"), "in the way").unwrap();
    let world = world.on_one_host();
    run_some(&world, "x", 2);
    wait_until("it is noted", || {
        let told = world.canal(["status", "-v"]).end().code(0).stdout;
        told.contains("it cannot write its history in ")
    });
    let found = world.canal(["history", "--json"]).end().code(0).json();
    assert_eq!(found["records"].as_array().unwrap().len(), 0);
    wait_until("they are counted", || {
        let found = world.canal(["history", "--json"]).end().code(0).json();
        found["dropped"] == 2
    });
}

#[test]
fn files_are_the_daemons_alone_and_off_is_off() {
    let world = World::with_daemon().on_one_host();
    run_some(&world, "x", 1);
    until_recorded(&world, &["x"], 1);
    let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(world.runtime().join("history")), 0o700);
    assert!(files(&world).into_iter().all(|file| mode(file) == 0o600));
    if journal_only("the configuration of an engine is the test's") {
        return;
    }
    world.configure("[history]\nmax = 0\n");
    world.kill_daemon_quietly();
    let refused = world.canal(["history"]).end().code(125).stderr;
    assert!(
        refused.starts_with("canal: this daemon keeps no history\nhint: set `max`"),
        "{refused}"
    );
    let shown = world.canal(["config"]).end().code(0).stdout;
    assert!(shown.lines().any(|line| line.starts_with("history.max ") && line.ends_with("line 2")));
}
