//! Waiting for a free lock causes no deadlock: a session overtakes the waiters that it blocks
//! itself.

use std::process::Stdio;

use crate::script::{Script, holder, until_nothing, waiter};
use crate::world::World;
use crate::world::process::wait_until;
use crate::world::record::Events;

/// A script holds `outer`, which makes another session wait for `wanted`, and the script asks for
/// `inner`. canal grants it at once and refuses no request.
#[track_caller]
fn passes(outer: &str, wanted: &str, inner: &str) {
    for restarted in [false, true] {
        for inner in [inner.to_owned(), format!("-n {inner}")] {
            let world = World::with_daemon();
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
        }
    }
}

#[test]
fn a_holder_passes_its_own_waiter() {
    passes("--write a", "--write a --write b", "--write b");
    passes("-k a", "-k a -k b", "-k b");
}

#[test]
fn a_holder_of_a_slot_gets_the_second_before_a_waiter_for_both() {
    let one = "-k pool --per 1 --buckets 2";
    passes(one, &format!("{one} --count 2"), one);
}

#[test]
fn a_reader_is_granted_reads_below_while_a_writer_waits_for_it() {
    passes("--read a", "--write a", "--read a/1");
}

#[test]
fn a_job_gets_its_next_key_while_a_migration_waits_for_it() {
    passes("-k d/x", "--write d", "-k d/y");
    passes("-k d/x -j 4", "--write d", "-k d/y --per 1 --buckets 2");
    passes("--read d/x", "--write d", "--write d/y");
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
