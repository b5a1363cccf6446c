//! Kills and stops processes in the middle of deadlocks: canal reports no deadlock that involves a
//! dead process, and loses no waiter.

use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::backend::{self, over_engines};
use crate::script::{
    Script, graph, holder, is_free, send_line, stop, until_holds, until_nothing, waiter,
};
use crate::world::World;
use crate::world::process::{alive, signal, wait_until};
use crate::world::record::Events;

over_engines! {
    "a death and the wait that closes the cycle can be entries of two hosts":
        a_holder_killed_before_the_cycle_closes_causes_no_deadlock,
        a_deadlock_with_a_stopped_waiter_that_was_passed_is_found_when_it_continues;
}

#[test]
fn a_waiter_killed_before_the_cycle_closes_causes_no_deadlock() {
    let world = World::with_daemon();
    // Its script continues after the death of the inner command.
    let body = "read go; canal run --write b -- true; echo ended $?; read go";
    let args = ["run", "--write", "a", "--", "sh", "-c", body];
    let mut elder = world.canal(args).stdin(Stdio::piped()).spawn();
    until_holds(&world, elder.pid(), "a");
    let mut younger = Script::start(&world, "younger", "--write b", "--write a");
    send_line(&mut elder, "go");
    world.until_waiting("b", 1);
    signal(crate::world::process::commands(elder.pid())[0], Signal::SIGKILL);
    // The test does not wait until the daemon has noticed the death, because a daemon reads all
    // reported deaths before it decides.
    wait_until("its script knows", || elder.stdout().contains("ended 137"));
    if backend::is_engine() {
        // The daemon of another host learns of the death from the log.
        world.until_waiting("b", 0);
    }
    younger.go_and_wait(&world);
    assert_eq!(graph(&world).waits.len(), 1);
    elder.finish();
    younger.succeeds();
    until_nothing(&world);
}

#[test]
fn a_holder_killed_before_the_cycle_closes_causes_no_deadlock() {
    let world = World::with_daemon();
    let mut elder = Script::start(&world, "elder", "--write a", "--write b");
    let mut younger = Script::start(&world, "younger", "--write b", "--write a");
    elder.go_and_wait(&world);
    let inner = elder.inner_pid();
    elder.proc.signal(Signal::SIGKILL);
    wait_until("the elder is dead", || !alive(elder.proc.pid()));
    if backend::is_engine() {
        wait_until("its hold has ended", || world.key("a").holders.is_empty());
    }
    younger.go();
    younger.succeeds();
    // The inner command that it had started still waits, and gets its turn.
    wait_until("the inner command has ended", || !alive(inner));
    assert_eq!(Events::of(&world).started(), ["younger", "elder"]);
    until_nothing(&world);
}

#[test]
fn a_killed_writer_frees_its_lock() {
    let world = World::with_daemon();
    let writer = holder(&world, "--write db");
    let waiting = ["--read db/x", "-k db/y -j 2", "--write db/z"]
        .map(|lock| waiter(&world, lock, &["echo", "on"]));
    assert_eq!(writer.kill().signal, Some(9));
    for one in waiting {
        assert_eq!(one.end().code(0).stdout, "on\n");
    }
    until_nothing(&world);
    // The next session need not wait, because the daemon already knew of the death.
    let writer = holder(&world, "--write db");
    writer.kill();
    world.canal(["run", "-n", "--write", "db/x/y", "--", "true"]).end().code(0);
}

#[test]
fn a_hold_kept_by_children_takes_part_in_a_deadlock() {
    let world = World::with_daemon();
    let mut elder = Script::start(&world, "elder", "--write a --with-children", "--write b");
    let mut younger = Script::start(&world, "younger", "--write b", "--write a");
    elder.go_and_wait(&world);
    elder.proc.signal(Signal::SIGKILL);
    wait_until("the elder is dead", || !alive(elder.proc.pid()));
    assert!(!is_free(&world, "--read a"), "its child keeps it");
    younger.go();
    younger.refused();
    wait_until("the child of the elder ran", || Events::of(&world).ended() == 1);
    assert_eq!(Events::of(&world).started(), ["elder"]);
    until_nothing(&world);
}

#[test]
fn a_stopped_waiter_takes_part_in_a_deadlock() {
    let world = World::with_daemon();
    let mut elder = Script::start(&world, "elder", "--write a", "--write b");
    let mut younger = Script::start(&world, "younger", "--write b", "--write a");
    elder.go_and_wait(&world);
    let inner = elder.inner_pid();
    stop(inner);
    younger.go();
    younger.refused();
    signal(inner, Signal::SIGCONT);
    elder.succeeds();
    until_nothing(&world);
}

#[test]
fn a_deadlock_with_a_stopped_waiter_that_was_passed_is_found_when_it_continues() {
    let world = World::with_daemon();
    let mut elder = Script::start(&world, "elder", "--write a", "--write b");
    let first = holder(&world, "--write b");
    elder.go_and_wait(&world);
    let inner = elder.inner_pid();
    stop(inner);
    first.finish().code(0);
    // It could be granted, but it is stopped: another session overtakes it and asks for the lock of
    // its script.
    let mut younger = Script::start(&world, "younger", "--write b", "--write a");
    younger.go();
    wait_until("the younger one asks", || world.key("a").waiting == 1 || younger.proc.has_ended());
    signal(inner, Signal::SIGCONT);
    younger.refused();
    elder.succeeds();
    until_nothing(&world);
}
