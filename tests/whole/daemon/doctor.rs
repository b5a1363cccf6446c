//! `canal doctor` finds each problem, suggests a remedy, and changes nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::world::doctor::{about, found_by};
use crate::world::{World, journal_only};

#[test]
fn a_set_up_without_a_problem_is_0_and_no_daemon_is_started() {
    if journal_only("an engine is found by a daemon only") {
        return;
    }
    let world = World::new();
    let report = found_by(world.canal(["doctor", "--json"]).end(), false);
    let (level, message) = &about(&report, "daemon")[0];
    assert_eq!(
        (level.as_str(), message.contains("no daemon is running")),
        ("note", true),
        "{report}"
    );
    let (_, socket) = &about(&report, "socket")[0];
    assert!(socket.contains(&world.socket().display().to_string()), "{socket}");
    assert!(socket.ends_with("given by CANAL_SOCKET"), "{socket}");
    assert!(!world.socket().exists(), "it changes nothing");
    world.status();
    let report = found_by(world.canal(["doctor", "--json"]).end(), false);
    let (level, message) = &about(&report, "daemon")[0];
    assert_eq!((level.as_str(), message.starts_with("pid ")), ("fine", true), "{report}");
}

#[test]
fn edits_that_are_not_in_force_and_broken_ones_are_problems() {
    if journal_only("the configuration of an engine is the test's") {
        return;
    }
    let world = World::with_daemon();
    let configuration = |has_problem: bool| {
        let report = found_by(world.canal(["doctor", "--json"]).end(), has_problem);
        about(&report, "configuration")
    };
    world.configure("[keys.x]\nslots = 2\n");
    let found = configuration(true);
    assert_eq!(found[1].0, "problem", "{found:?}");
    assert_eq!(found[1].1, "not in force yet: keys.x: 2 (was not given)");
    world.canal(["daemon", "--reload"]).end().code(0);
    assert_eq!(configuration(false).len(), 1);
    world.configure("[keys.x]\nslotts = 2\n");
    let found = configuration(true);
    assert!(found[1].1.contains("line 2: unknown field `slotts`"), "{found:?}");
    world.canal(["daemon", "--stop"]).end().code(0);
    let found = configuration(true);
    assert!(found[0].1.contains("line 2: unknown field `slotts`"), "{found:?}");
    let shown = world.canal(["doctor"]).end().code(1).stdout;
    assert!(shown.contains("PROBLEM  configuration  "), "{shown}");
    assert_eq!(shown.matches("PROBLEM").count(), 1, "one line is one problem: {shown}");
    let shown = world.canal(["doctor", "--engine", "etcd://127.0.0.1:1"]).end().code(1).stdout;
    assert_eq!(shown.matches("PROBLEM").count(), 1, "also beside an engine: {shown}");
    assert!(shown.contains("hint: fix it; no daemon can start with it\n"), "{shown}");
}

#[test]
fn a_directory_that_others_can_write_is_a_problem() {
    if journal_only("the place is the test's") {
        return;
    }
    let world = World::new();
    fs::set_permissions(world.runtime(), fs::Permissions::from_mode(0o777)).unwrap();
    let report = found_by(world.canal(["doctor", "--json"]).end(), true);
    let (level, message) = &about(&report, "directory")[0];
    assert_eq!(level, "problem", "{report}");
    assert!(message.contains("is writable by other users"), "{message}");
    fs::set_permissions(world.runtime(), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn what_cannot_be_looked_at_is_125() {
    let world = World::new();
    let ended = world.canal(["--socket", "/", "doctor"]).end().code(125);
    assert!(ended.stderr.contains("does not name a file"), "{ended:?}");
}
