//! Stopped waiters and holders, and waiters that sleep.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::backend::over_engines;
use crate::lease::Lease;
use crate::world::process::{sleeps, state, wait_until};
use crate::world::record::{Events, recorded};
use crate::world::{World, journal_only};

over_engines! {
    "the host of a waiter reports that it is stopped":
        a_stopped_waiter_blocks_no_other_and_goes_on_when_it_runs_again,
        a_stopped_waiter_keeps_its_place,
        a_waiter_for_another_process_keeps_its_place_over_the_end_of_a_daemon,
        a_stopped_holder_keeps_its_lock_and_is_shown_as_stopped;
}

#[test]
fn a_stopped_waiter_blocks_no_other_and_goes_on_when_it_runs_again() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let body = recorded(":");
    let stopped = world.waiter("x", &[], &["sh", "-c", &body, "sh", "stopped"]);
    let next = world.waiter("x", &[], &["sh", "-c", &body, "sh", "next"]);
    stopped.stop();
    holder.finish();
    next.end().code(0);
    world.until_held("x", 0);
    let key = world.key("x");
    assert_eq!(key.waiting, 1, "it keeps its place");
    assert!(key.waiters[0].reason.contains("stopped"), "{:?}", key.waiters[0]);
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
    stopped.signal(Signal::SIGCONT);
    stopped.end().code(0);
    assert_eq!(Events::of(&world).started(), ["next", "stopped"]);
}

#[test]
fn a_stopped_waiter_for_another_process_blocks_no_other() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let owner = world.program("sleep", ["600"]).spawn();
    let asker = world.canal(["acquire", "-k", "x", "--pid", &owner.pid_text()]).spawn();
    world.until_waiting("x", 1);
    asker.stop();
    holder.finish();
    world.canal(["run", "-w", "120", "-k", "x", "--", "true"]).end().code(0);
    assert_eq!(world.key("x").waiting, 1, "it keeps its place");
    asker.signal(Signal::SIGCONT);
    asker.end().code(0);
    assert_eq!(world.held("x"), 1);
    owner.kill();
    world.until_idle();
}

#[test]
fn a_stopped_waiter_keeps_its_place() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let body = recorded(":");
    let first = world.waiter("x", &[], &["sh", "-c", &body, "sh", "first"]);
    let second = world.waiter("x", &[], &["sh", "-c", &body, "sh", "second"]);
    first.stop();
    first.signal(Signal::SIGCONT);
    wait_until("it runs again", || state(first.pid()) != Some('T'));
    // The daemon may have noticed that it is stopped.
    wait_until("it waits as before", || {
        world.key("x").waiters.iter().all(|waiter| !waiter.reason.contains("stopped"))
    });
    holder.finish();
    first.end().code(0);
    second.end().code(0);
    assert_eq!(Events::of(&world).started(), ["first", "second"]);
}

#[test]
fn a_stopped_waiter_keeps_its_place_over_the_end_of_a_daemon() {
    if journal_only("a host of an engine joins anew before it looks at its waiters") {
        return;
    }
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let free = world.holder(&["-k", "free"]);
    let body = recorded(":");
    let first = world.waiter("x", &["-k", "free"], &["sh", "-c", &body, "sh", "first"]);
    let second = world.waiter("x", &[], &["sh", "-c", &body, "sh", "second"]);
    let killed = world.waiter("x", &[], &["true"]);
    first.stop();
    killed.stop();
    // Its client does not return, although its owner lives. The owner's end shows that the daemon
    // gave up on the request.
    let owner = world.program("sleep", ["60"]).spawn();
    let lost = world.canal(["acquire", "-k", "x", "--pid", &owner.pid_text()]).spawn();
    world.until_waiting("x", 4);
    lost.stop();
    world.kill_daemon();
    lost.kill();
    world.status();
    free.finish();
    // It never blocks another request.
    world.canal(["run", "-n", "-k", "free", "--", "true"]).end().code(0);
    world.until_waiting("x", 3);
    let reasons = world.key("x").waiters.into_iter().map(|waiter| waiter.reason);
    assert_eq!(reasons.filter(|reason| reason.contains("stopped")).count(), 2);
    killed.kill();
    world.until_waiting("x", 2);
    first.signal(Signal::SIGCONT);
    wait_until("it waits as before", || {
        world.key("x").waiters.iter().all(|waiter| !waiter.reason.contains("stopped"))
    });
    holder.finish();
    first.end().code(0);
    second.end().code(0);
    owner.kill();
    assert_eq!(Events::of(&world).started(), ["first", "second"]);
}

#[test]
fn a_waiter_for_another_process_keeps_its_place_over_the_end_of_a_daemon() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let owner = world.program("sleep", ["600"]).spawn();
    let pid = owner.pid_text();
    let lease = Lease::ask(&world, "10m", &["-k", "x"]);
    world.until_waiting("x", 1);
    let for_owner = world.canal(["acquire", "-k", "x", "--pid", &pid]).spawn();
    world.until_waiting("x", 2);
    let killed = Lease::ask(&world, "10m", &["-k", "x"]);
    world.until_waiting("x", 3);
    // When the daemon gives up this request, the 5 s of all running clients are over.
    let lost = world.canal(["acquire", "-k", "x", "--pid", &pid]).spawn();
    world.until_waiting("x", 4);
    for asker in [&lease, &for_owner, &killed, &lost] {
        asker.stop();
    }
    world.kill_daemon();
    lost.kill();
    world.status();
    world.until_waiting("x", 3);
    wait_until("the others are known to be stopped", || {
        world.key("x").waiters.iter().all(|waiter| waiter.reason.contains("stopped"))
    });
    killed.kill();
    world.until_waiting("x", 2);
    // They block no other request.
    holder.finish();
    world.canal(["run", "-w", "120", "-k", "x", "--", "true"]).end().code(0);
    lease.signal(Signal::SIGCONT);
    let lease = Lease::of(&lease.end().code(0));
    for_owner.signal(Signal::SIGCONT);
    wait_until("it waits as before", || {
        world.key("x").waiters.iter().all(|waiter| !waiter.reason.contains("stopped"))
    });
    assert_eq!(world.key("x").waiting, 1);
    lease.release(&world).code(0);
    for_owner.end().code(0);
    assert_eq!(world.held("x"), 1);
    owner.kill();
    world.until_idle();
}

#[test]
fn a_stopped_holder_keeps_its_lock_and_is_shown_as_stopped() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    holder.stop();
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    assert_eq!(world.key("x").holders[0].state.as_deref(), Some("stopped"));
    holder.signal(Signal::SIGCONT);
    holder.finish();
    world.until_idle();
}

#[test]
fn a_waiter_sleeps_until_something_is_due() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &["-q", "-w", "3600"], &["true"]);
    // Two things wake the waiter: the first messages of the daemon, and a check every 25 s whether
    // the daemon is stopped.
    wait_until("it sleeps for seconds on end", || {
        let before = sleeps(waiter.pid());
        thread::sleep(Duration::from_secs(3));
        sleeps(waiter.pid()) == before
    });
    holder.finish();
    waiter.end().code(0);
}

#[test]
fn a_waiter_that_ends_while_it_is_stopped_and_has_no_client_gets_nothing() {
    if journal_only("it is about what one daemon leaves to the next") {
        return;
    }
    // The next daemon keeps the place of a waiter without a client for 5 s. On a busy machine these
    // pass before the test gets there, so try again.
    assert!((0..20).any(|_| a_waiter_without_a_client_ends_while_it_is_stopped()), "too slow");
}

/// Returns whether its daemon still kept its place when it was stopped.
fn a_waiter_without_a_client_ends_while_it_is_stopped() -> bool {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let owner = world.program("sleep", ["600"]).spawn();
    let asker = world.canal(["acquire", "-k", "x", "--pid", &owner.pid_text()]).spawn();
    world.until_waiting("x", 1);
    world.kill_daemon_quietly();
    asker.kill();
    holder.finish();
    let next = world.canal(["run", "-k", "x", "--", "cat"]).stdin(Stdio::piped()).spawn();
    let mut kept = false;
    wait_until("the next one waits or holds", || {
        let key = world.key("x");
        kept = key.waiting == 2;
        kept || key.held == 1
    });
    if kept {
        owner.stop();
        // The daemon checks once a second which requests are ahead. A shorter wait would only
        // detect less.
        thread::sleep(Duration::from_millis(1_500));
    }
    owner.kill();
    world.until_held("x", 1);
    assert_eq!(world.key("x").holders[0].pid.cast_signed(), next.pid());
    next.finish();
    kept
}
