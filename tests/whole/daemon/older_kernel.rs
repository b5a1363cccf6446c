//! Behaviour that must be the same on an old kernel, without SO_PEERPIDFD and without pidfs.

use nix::sys::signal::Signal;

use crate::whole::crash::kill::the_daemon_is_killed;
use crate::world::World;
use crate::world::process::Proc;
use crate::world::record::{Events, recorded};

#[test]
fn a_killed_daemon_loses_no_hold_and_no_waiter() {
    the_daemon_is_killed(&World::of_linux_5_10(), 2);
}

#[test]
fn runs_in_a_row_never_conflict() {
    let world = World::of_linux_5_10();
    let script = "i=0; while [ $i -lt 30 ]; do
        canal run -n -k x -- true || { echo \"run $i: $?\"; exit 1; }
        i=$((i + 1))
    done";
    assert_eq!(world.sh(script).end().code(0).stdout, "");
    world.until_idle();
}

#[test]
fn runs_at_once_stay_within_capacity() {
    let world = World::of_linux_5_10();
    let body = recorded("sleep 0.01");
    let spawn = |i: usize| {
        let name = i.to_string();
        world.canal(["run", "-k", "x=4x1", "--", "sh", "-c", &body, "sh", &name]).spawn()
    };
    let all: Vec<Proc> = (0..40).map(spawn).collect();
    for one in all {
        one.end().code(0);
    }
    let events = Events::of(&world);
    assert_eq!(events.ended(), 40);
    assert!(events.most_at_once() <= 4, "{}", events.most_at_once());
}

#[test]
fn dead_processes_hold_nothing_and_are_granted_nothing() {
    let world = World::of_linux_5_10();
    let holder = world.holder(&["-k", "x"]);
    let dead = world.waiter("x", &[], &["true"]);
    let next = world.waiter("x", &[], &["echo", "on"]);
    dead.kill();
    holder.signal(Signal::SIGKILL);
    assert_eq!(next.end().code(0).stdout, "on\n");
    drop(holder);
    world.until_idle();
}

#[test]
fn an_acquired_lock_keeps_its_owner_over_a_restart() {
    let world = World::of_linux_5_10();
    let owner = world.program("sleep", ["600"]).spawn();
    world.canal(["acquire", "-k", "x", "--pid", &owner.pid_text()]).end().code(0);
    world.kill_daemon();
    world.status();
    assert_eq!(world.key("x").holders[0].pid.cast_signed(), owner.pid());
    owner.kill();
    world.until_held("x", 0);
}

#[test]
fn the_status_names_the_fallbacks_in_use() {
    let world = World::of_linux_5_10();
    let notes = world.status().daemon.notes;
    assert!(!notes.is_empty());
}
