//! Waiting for a free lock causes no deadlock: a session overtakes the waiters that it blocks
//! itself.

use std::fs;
use std::process::Stdio;

use crate::script::{Script, holder, until_nothing, waiter};
use crate::world::World;
use crate::world::process::wait_until;
use crate::world::record::Events;

const SLOT: &str = "-k pool --per 1 --buckets 2";
const BOTH_SLOTS: &str = "-k pool --per 1 --buckets 2 --count 2";

/// A script holds the first lock, which makes another session wait for the second, and the script
/// asks for the third.
const PASSED: [[&str; 3]; 7] = [
    ["--write a", "--write a --write b", "--write b"],
    ["-k a", "-k a -k b", "-k b"],
    [SLOT, BOTH_SLOTS, SLOT],
    ["--read a", "--write a", "--read a/1"],
    ["-k d/x", "--write d", "-k d/y"],
    ["-k d/x -j 4", "--write d", "-k d/y --per 1 --buckets 2"],
    ["--read d/x", "--write d", "--write d/y"],
];

/// canal grants the third lock at once and refuses no request.
#[test]
fn a_holder_passes_its_own_waiter_also_after_a_restart_and_without_waiting() {
    let world = World::with_daemon();
    for [outer, wanted, inner] in PASSED {
        for (restarted, inner) in [(false, inner.to_owned()), (true, format!("-n {inner}"))] {
            let mut script = Script::start(&world, "script", outer, &inner);
            // A client that waits for a long time would print progress.
            let wanted_quietly = format!("--progress none {wanted}");
            let other = waiter(&world, &wanted_quietly, &["sh", "-c", "echo '+ other' >>events"]);
            if restarted {
                world.kill_daemon();
                world.status();
            }
            script.go();
            script.succeeds();
            assert_eq!(other.end().code(0).stderr, "", "{outer} / {wanted} / {inner}");
            assert_eq!(Events::of(&world).started(), ["script", "other"]);
            until_nothing(&world);
            fs::remove_file(world.path("work/events")).unwrap();
        }
    }
}

#[test]
fn holders_further_along_a_chain_of_waits_pass_too() {
    let world = World::with_daemon();
    let mut first = Script::start(&world, "first", "--write a", "--read d/y");
    let mut second = Script::start(&world, "second", "-k d/x", "--write a");
    second.go_and_wait(&world);
    let migration = waiter(&world, "--write d", &["sh", "-c", "echo '+ migration' >>events"]);
    // The migration waits for the second session, and the second for the first.
    first.go();
    first.succeeds();
    second.succeeds();
    migration.end().code(0);
    assert_eq!(Events::of(&world).started(), ["first", "second", "migration"]);
    until_nothing(&world);
}

#[test]
fn a_session_that_blocks_no_waiter_waits_its_turn() {
    let world = World::with_daemon();
    let job = holder(&world, "-k d/x");
    let migration = waiter(&world, "--write d", &["sh", "-c", "echo '+ migration' >>events"]);
    let late = waiter(&world, "-k d/y", &["sh", "-c", "echo '+ late' >>events"]);
    let mut bystander = Script::start(&world, "bystander", "--write other", "-k d/z");
    bystander.go_and_wait(&world);
    assert_eq!(Events::of(&world).started().len(), 0);
    job.finish().code(0);
    migration.end().code(0);
    late.end().code(0);
    bystander.succeeds();
    assert_eq!(Events::of(&world).started()[0], "migration");
}

#[test]
fn parallel_children_pass_the_waiters_for_their_parent() {
    let world = World::with_daemon();
    let body = "read go; for key in x y z; do canal run -k d/$key -- echo $key & done; wait";
    let args = ["run", "--read", "d", "--", "sh", "-c", body];
    let mut outer = world.canal(args).stdin(Stdio::piped()).spawn();
    crate::script::until_holds(&world, outer.pid(), "d");
    let migration = waiter(&world, "--write d", &["echo", "alone"]);
    crate::script::send_line(&mut outer, "go");
    wait_until("all children ran", || outer.stdout().lines().count() == 3);
    outer.end().code(0);
    assert_eq!(migration.end().code(0).stdout, "alone\n");
    until_nothing(&world);
}
