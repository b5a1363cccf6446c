//! The order in which canal grants waiters their locks.

use std::fs;
use std::process::Stdio;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::backend::over_engines;
use crate::world::World;
use crate::world::process::{Proc, wait_until};
use crate::world::record::{Events, recorded};

over_engines! {
    "the order is that of the log, and an end has to be in it before a shell goes on":
        a_lock_is_free_as_soon_as_the_shell_has_seen_the_command_end,
        waiters_on_one_slot_run_in_the_order_of_their_arrival;
}

#[test]
fn a_lock_is_free_as_soon_as_the_shell_has_seen_the_command_end() {
    let world = World::with_daemon();
    // A killed command, and a command whose output closes before it ends.
    let script = "i=0; while [ $i -lt 30 ]; do
        canal run -n -k x -- sh -c 'kill -9 $$' || [ $? -eq 137 ] || exit 1
        canal run -n -k x -- sh -c 'exec >&-; exit 3' | cat
        canal run -n -k x -- true || exit 2
        i=$((i + 1))
    done";
    let ended = world.program("bash", ["-c", script]).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn waiters_on_one_slot_run_in_the_order_of_their_arrival() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let names: Vec<String> = (0..12).map(|i| i.to_string()).collect();
    let body = recorded(":");
    let waiters: Vec<Proc> =
        names.iter().map(|name| world.waiter("x", &[], &["sh", "-c", &body, "sh", name])).collect();
    holder.finish().code(0);
    for waiter in waiters {
        waiter.end().code(0);
    }
    let events = Events::of(&world);
    assert_eq!(events.started(), names);
    assert_eq!(events.most_at_once(), 1);
}

#[test]
fn three_slots_are_never_held_by_more_than_three_commands() {
    let world = World::with_daemon();
    // The first three commands run until all three have started.
    let body = recorded("while ! [ -e go ]; do sleep 0.02; done");
    let spawn = |i: usize| {
        let name = i.to_string();
        world
            .canal(["run", "-k", "x", "--slots", "3", "--", "sh", "-c", &body, "sh", &name])
            .spawn()
    };
    let all: Vec<Proc> = (0..24).map(spawn).collect();
    let begun = || fs::read_to_string(world.path("work/events")).unwrap_or_default();
    wait_until("three run", || begun().lines().count() == 3);
    fs::write(world.path("work/go"), "").unwrap();
    for one in all {
        one.end().code(0);
    }
    let events = Events::of(&world);
    assert_eq!(events.ended(), 24);
    assert_eq!(events.most_at_once(), 3);
    world.until_idle();
}

#[test]
fn no_slot_has_two_holders_and_the_lowest_free_slot_is_taken() {
    let world = World::with_daemon();
    let print = "echo \"$CANAL_SLOT $CANAL_BUCKET $CANAL_SLOTS $CANAL_KEY\"; cat";
    let hold = || {
        let lock = ["run", "-k", "gpu", "--per", "2", "--buckets", "2", "--", "sh", "-c", print];
        world.canal(lock).stdin(Stdio::piped()).spawn()
    };
    let mut holders: Vec<Proc> = Vec::new();
    for n in 1..=4 {
        holders.push(hold());
        world.until_held("gpu", n);
    }
    let fifth = hold();
    world.until_waiting("gpu", 1);
    holders.remove(1).finish();
    wait_until("the fifth runs", || !fifth.stdout().is_empty());
    assert_eq!(fifth.stdout(), "1 0 1 gpu\n");
    for (holder, said) in holders.iter().zip(["0 0 0 gpu\n", "2 1 2 gpu\n", "3 1 3 gpu\n"]) {
        wait_until("it runs", || !holder.stdout().is_empty());
        assert_eq!(holder.stdout(), said);
    }
}

#[test]
fn a_higher_priority_goes_first() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let body = recorded(":");
    let low = world.waiter("x", &[], &["sh", "-c", &body, "sh", "low"]);
    let high = world.waiter("x", &["--priority", "5"], &["sh", "-c", &body, "sh", "high"]);
    holder.finish();
    high.end().code(0);
    low.end().code(0);
    assert_eq!(Events::of(&world).started(), ["high", "low"]);
}

#[test]
fn a_wait_that_timed_out_leaves_no_waiter() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let begun = Instant::now();
    let late = world.canal(["run", "-w", "0.3", "-k", "x", "--", "true"]).end();
    assert_eq!(late.code, Some(75), "{late:?}");
    assert!(begun.elapsed().as_millis() >= 300);
    assert_eq!(world.key("x").waiting, 0);
    holder.finish();
    world.until_idle();
}

#[test]
fn an_interrupted_waiter_leaves_the_queue() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    for which in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGKILL] {
        let waiter = world.waiter("x", &[], &["true"]);
        waiter.signal(which);
        assert_eq!(waiter.end().signal, Some(which as i32));
        world.until_waiting("x", 0);
    }
    holder.finish();
    world.until_idle();
}

/// The idiom of cron: one command runs, one waits, and the rest skip.
#[test]
fn a_command_does_not_wait_behind_more_than_it_accepts() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let next = world.waiter("x", &["--max-waiting", "1"], &["echo", "next"]);
    let one = ["--max-waiting", "1", "-k", "x"];
    let with = |verb: &str, args: &[&str], more: &[&str]| {
        world.canal([&[verb][..], args, more].concat()).end()
    };
    let skipped = with("run", &one, &["--", "true"]).code(75);
    assert!(skipped.stderr.contains("1 request is already waiting"), "{skipped:?}");
    let quiet = with("run", &one, &["-E", "0", "--", "true"]).code(0);
    assert_eq!(quiet.stderr, "");
    let refused = with("acquire", &one, &["--json"]).code(75);
    assert!(refused.stdout.contains("\"refused\":\"max-waiting\""), "{refused:?}");
    // Waiters keep waiting when their daemon is replaced, however many they are.
    let behind = world.waiter("x", &["--max-waiting", "2"], &["echo", "behind"]);
    world.kill_daemon();
    world.status();
    wait_until("both are back", || world.key("x").waiting == 2);
    holder.finish();
    assert_eq!(next.end().code(0).stdout, "next\n");
    assert_eq!(behind.end().code(0).stdout, "behind\n");
}
