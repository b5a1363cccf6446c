//! Processes that a command leaves behind when it ends.

use std::fs;

use nix::sys::signal::Signal;

use crate::backend::{self, over_engines};
use crate::world::World;
use crate::world::process::{Proc, alive, children, signal, wait_until};

over_engines! {
    "a daemon of an engine hands the children of a hold to the next one":
        with_children_the_lock_is_kept_over_a_restart_of_the_daemon,
        with_children_the_next_daemon_notices_children_that_ended_meanwhile,
        only_a_daemon_without_an_engine_has_a_jobserver;
}

/// The pid that a command wrote to the file `pid`.
fn left_behind(world: &World) -> i32 {
    wait_until("the background process wrote its number", || world.read("pid").ends_with('\n'));
    world.read("pid").trim().parse().unwrap()
}

/// Runs [`LEAVE`] with `--with-children`, and waits until its command has ended.
#[track_caller]
fn leave_with_children(world: &World) -> (Proc, i32) {
    let run = world.canal(["run", "--with-children", "-k", "x", "-c", LEAVE]).spawn();
    let left = left_behind(world);
    wait_until("the command has ended", || {
        world.key("x").holders.first().is_some_and(|h| h.state.as_deref() == Some("children"))
    });
    (run, left)
}

/// Leaves a process behind: in the background, in its own session, without any descriptor of the
/// command except those that the command does not know of.
const LEAVE: &str = "setsid sh -c 'echo $$ >pid; exec sleep 600' </dev/null >/dev/null 2>&1 & while ! [ -s pid ]; do :; done";

#[test]
fn a_process_left_in_the_background_does_not_keep_the_lock() {
    let world = World::with_daemon();
    world.canal(["run", "-k", "x", "-c", LEAVE]).end().code(0);
    let left = left_behind(&world);
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
    assert!(alive(left));
}

#[test]
fn with_children_a_process_left_in_the_background_keeps_the_lock() {
    let world = World::with_daemon();
    let (run, left) = leave_with_children(&world);
    assert_eq!(world.held("x"), 1);
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    signal(left, Signal::SIGKILL);
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    // Over an engine `canal run` stayed with the process left behind, because the lock could have
    // been lost.
    run.end().code(0);
    world.until_idle();
}

#[test]
fn with_children_the_lock_is_free_when_the_command_ends_without_any() {
    let world = World::with_daemon();
    for _ in 0..8 {
        world.canal(["run", "-n", "--with-children", "-k", "x", "--", "true"]).end().code(0);
        world.until_held("x", 0);
    }
    let folder = world.runtime().join("children");
    let left = || fs::read_dir(&folder).map_or(0, Iterator::count);
    wait_until("nothing is left in the folder of the FIFOs", || left() == 0);
}

#[test]
fn with_children_the_lock_is_kept_over_a_restart_of_the_daemon() {
    let world = World::with_daemon();
    let (run, left) = leave_with_children(&world);
    for _ in 0..2 {
        world.kill_daemon();
        world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
        world.daemons_return();
        assert_eq!(world.held("x"), 1);
    }
    signal(left, Signal::SIGKILL);
    world.until_held("x", 0);
    run.end().code(0);
}

/// The next daemon cannot open a removed FIFO, and a new FIFO would have no writers.
#[test]
fn with_children_the_lock_is_kept_although_its_fifo_was_removed() {
    let world = World::with_daemon();
    let (run, left) = leave_with_children(&world);
    let removed = fs::remove_dir_all(world.runtime().join("children"));
    assert!(removed.is_ok() || backend::is_engine(), "another host may have it");
    assert_eq!(world.held("x"), 1);
    for _ in 0..2 {
        world.kill_daemon();
        world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
        world.daemons_return();
        assert_eq!(world.held("x"), 1);
    }
    signal(left, Signal::SIGKILL);
    world.until_held("x", 0);
    run.end().code(0);
}

#[test]
fn with_children_the_next_daemon_notices_children_that_ended_meanwhile() {
    let world = World::with_daemon();
    let (run, left) = leave_with_children(&world);
    world.kill_daemon_quietly();
    signal(left, Signal::SIGKILL);
    wait_until("it is dead", || !alive(left));
    world.daemons_return();
    if backend::is_engine() {
        // Wait until the other host knows it too.
        world.until_held("x", 0);
    }
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
    run.end().code(0);
}

#[test]
fn with_children_and_max_run_the_parent_waits_for_processes_left_behind() {
    let world = World::with_daemon();
    let args = ["run", "--with-children", "--max-run", "60", "-k", "x", "-c", LEAVE];
    let mut run = world.canal(args).spawn();
    let left = left_behind(&world);
    wait_until("the command has ended", || {
        world.key("x").holders.first().is_some_and(|h| h.state.as_deref() == Some("children"))
    });
    assert!(!run.has_ended());
    signal(left, Signal::SIGKILL);
    run.end().code(0);
    world.until_held("x", 0);
}

#[test]
fn with_children_a_command_killed_with_its_children_frees_the_lock() {
    let world = World::with_daemon();
    let run = world.canal(["run", "--with-children", "-k", "x", "-c", "cat | cat"]);
    let run = run.stdin(std::process::Stdio::piped()).spawn();
    wait_until("both run", || children(run.pid()).len() == 2);
    run.signal(Signal::SIGKILL);
    wait_until("it is dead", || !alive(run.pid()));
    // The two `cat`s live until their input ends.
    assert_eq!(world.held("x"), 1);
    drop(run);
    world.until_held("x", 0);
}

#[test]
fn only_a_daemon_without_an_engine_has_a_jobserver() {
    let world = World::with_daemon();
    let ended = world.canal(["run", "--jobserver", "-k", "x", "--", "true"]).end();
    if backend::is_engine() {
        let ended = ended.code(125);
        assert!(ended.stderr.contains("with an engine has no jobserver"), "{}", ended.stderr);
    } else {
        ended.code(0);
    }
    world.until_idle();
}
