//! Kills the daemon after each record of its journal, before it answers.

use std::process::Stdio;

use crate::world::World;
use crate::world::process::{Ended, alive, wait_until};
use crate::world::record::{Events, recorded};

/// An upper bound of the number of records that [`scenario`] writes.
const RECORDS_MAX: u32 = 48;

/// Requests, waits, a time-out, a refusal, a provisional grant, releases and deaths on two locks,
/// one of them with three slots. Returns whether the first daemon was killed during these.
fn scenario(world: &World, fault: u32) -> bool {
    let daemon = world.daemon(|cmd| cmd.env("CANAL_FAULT", format!("journal:{fault}")));
    let first = daemon.pid();
    let body = recorded("sleep 0.02");
    let run = |name: &str, lock: &[&str]| {
        let mut args = vec!["run"];
        args.extend(lock);
        args.extend(["--", "sh", "-c", &body, "sh", name]);
        world.canal(args).spawn()
    };
    let holder = world.canal(["run", "-k", "x", "--", "cat"]).stdin(Stdio::piped()).spawn();
    world.until_held("x", 1);
    let token = world.key("x").holders[0].token;

    let a = run("a", &["-k", "x"]);
    world.until_waiting("x", 1);
    let b = run("b", &["-k", "x", "--max-run", "60"]);
    world.until_waiting("x", 2);
    let three: Vec<_> = (0..4).map(|i| run(&format!("y{i}"), &["-k", "y=3x1"])).collect();

    let late = world.canal(["run", "-k", "x", "-w", "0.05", "--", "false"]).end();
    assert_eq!(late.code, Some(75), "{late:?}");
    let busy = world.canal(["run", "-n", "-k", "x", "--", "false"]).end();
    assert_eq!(busy.code, Some(75), "{busy:?}");

    let script =
        world.sh("canal acquire -q -k z --pid $$ || exit; read line").stdin(Stdio::piped());
    let script = script.spawn();
    world.until_held("z", 1);
    let dead = run("dead", &["-k", "x"]);
    world.until_waiting("x", 3);
    dead.kill();
    world.until_waiting("x", 2);
    script.kill();
    world.until_held("z", 0);

    world.until_held("x", 1);
    wait_until("it is held under the same token", || {
        world.key("x").holders.first().is_some_and(|holder| holder.token == token)
    });
    holder.finish().code(0);
    let end = |ended: Ended| assert_eq!(ended.code, Some(0), "fault after {fault}: {ended:?}");
    three.into_iter().for_each(|one| end(one.end()));
    end(a.end());
    end(b.end());
    world.until_idle();

    let events = Events::of(world);
    let of_x: Vec<&str> = events.started().into_iter().filter(|n| !n.starts_with('y')).collect();
    assert_eq!(of_x, ["a", "b"], "fault after {fault}");
    assert_eq!(events.started().len(), 6, "each ran once, and only once");
    assert!(events.most_at_once() <= 4);
    let next = world.canal(["run", "-n", "-k", "x", "-c", "echo $CANAL_TOKEN"]).end().code(0);
    assert!(next.stdout.trim().parse::<u64>().unwrap() > token, "a token was used again");
    let killed = !alive(first);
    drop(daemon);
    killed
}

/// Tries every fourth record, beginning with `first`. Four tests share the work so that they run in
/// parallel.
fn every_fourth_record(first: u32) {
    let mut fault = first;
    loop {
        assert!(fault < RECORDS_MAX, "the scenario writes more records than was thought");
        let world = World::new();
        if !scenario(&world, fault) {
            assert!(fault > 12, "no daemon was killed: the switch for faults does not work");
            return;
        }
        fault += 4;
    }
}

#[test]
fn a_daemon_killed_between_any_two_records_loses_nothing_1() {
    every_fourth_record(1);
}

#[test]
fn a_daemon_killed_between_any_two_records_loses_nothing_2() {
    every_fourth_record(2);
}

#[test]
fn a_daemon_killed_between_any_two_records_loses_nothing_3() {
    every_fourth_record(3);
}

#[test]
fn a_daemon_killed_between_any_two_records_loses_nothing_4() {
    every_fourth_record(4);
}

/// Acquires `x` three times for one process and releases it once, with a daemon that is killed
/// after `fault` records. Returns whether the daemon was killed before the release, and whether it
/// was killed at all.
fn release_once(fault: u32) -> (bool, bool) {
    let world = World::new();
    let daemon = world.daemon(|cmd| cmd.env("CANAL_FAULT", format!("journal:{fault}")));
    let first = daemon.pid();
    let owner = world.program("sleep", ["60"]).spawn();
    let pid = owner.pid_text();
    let take = || {
        let told = world.canal(["acquire", "--json", "-j", "9", "-k", "x", "--pid", &pid]).end();
        told.code(0).json()["token"].as_u64().unwrap()
    };
    let tokens = [take(), take(), take()];
    let before = !alive(first);
    let release = world.canal(["release", "--json", "x", "--pid", &pid]).end();
    let told = release.code(0).json();
    assert_eq!(told["released"].as_array().unwrap().len(), 1, "fault after {fault}: {told}");
    assert_eq!(told["released"][0]["token"], tokens[2], "fault after {fault}: {told}");
    let mut held: Vec<u64> = world.key("x").holders.iter().map(|holder| holder.token).collect();
    held.sort_unstable();
    assert_eq!(held, tokens[..2], "fault after {fault}");
    world.canal(["release", "y", "--pid", &pid]).end().code(125);
    let killed = !alive(first);
    owner.kill();
    drop(daemon);
    (before, killed)
}

#[test]
fn a_release_across_the_end_of_a_daemon_releases_once() {
    // The records are the floor of the tokens, three times a request and its confirmation, and the
    // release.
    let killed: Vec<_> = (5..12).map(release_once).collect();
    assert!(killed.contains(&(false, true)), "no release was interrupted: {killed:?}");
}
