//! Deadlocks through locks of several slots: canal refuses no request while a session can still
//! finish.

use crate::script::{Script, graph, holder, holds, until_nothing};
use crate::world::World;
use crate::world::process::wait_until;
use crate::world::record::Events;

/// The elder holds `a` and asks for one of two slots; the younger holds a slot and asks for `a`.
fn two_in_need(world: &World) -> [Script; 2] {
    let elder = Script::start(world, "elder", "--write a", "-k pool=2");
    let younger = Script::start(world, "younger", "-k pool=2", "--write a");
    [elder, younger]
}

#[test]
fn no_request_is_refused_while_a_third_holder_of_a_slot_can_finish() {
    let world = World::with_daemon();
    let [mut elder, mut younger] = two_in_need(&world);
    let third = holder(&world, "-k pool=2");
    elder.go_and_wait(&world);
    younger.go_and_wait(&world);
    // Both wait, and the next call reads this decision.
    assert_eq!(graph(&world).waits.len(), 2);
    for script in [&mut elder, &mut younger] {
        assert!(!script.proc.has_ended());
    }
    third.finish().code(0);
    elder.succeeds();
    younger.succeeds();
    assert_eq!(Events::of(&world).started(), ["elder", "younger"]);
    until_nothing(&world);
}

#[test]
fn a_third_holder_that_closes_the_cycle_is_refused_and_its_slot_frees_the_others() {
    let world = World::with_daemon();
    let [mut elder, mut younger] = two_in_need(&world);
    let mut third = Script::start(&world, "third", "-k pool=2", "--write a");
    elder.go_and_wait(&world);
    younger.go_and_wait(&world);
    third.go();
    let victim = third.refused();
    assert!(victim.stderr.contains("is waiting for `pool`, held by"), "{victim:?}");
    elder.succeeds();
    younger.succeeds();
    assert_eq!(Events::of(&world).started(), ["elder", "younger"]);
    until_nothing(&world);
}

#[test]
fn a_deadlock_is_found_although_a_third_holder_can_finish_if_its_slot_is_not_enough() {
    let world = World::with_daemon();
    // Three sessions hold the three slots; the elder asks for two of them at once.
    let mut elder = Script::start(&world, "elder", "--write a", "-k pool=3:2");
    let mut younger = Script::start(&world, "younger", "-k pool=3:2", "--write a");
    let third = holder(&world, "-k pool=3");
    elder.go_and_wait(&world);
    younger.go();
    // The third session frees only one slot when it ends, but the elder asks for two. So this is
    // immediately a deadlock.
    younger.refused();
    elder.succeeds();
    assert!(holds(&world, third.pid(), "pool"));
    third.finish().code(0);
    until_nothing(&world);
}

#[test]
fn a_resize_that_removes_the_free_slot_closes_the_cycle() {
    let world = World::with_daemon();
    world.canal(["resize", "pool", "--per", "1", "--buckets", "3"]).end().code(0);
    let mut elder = Script::start(&world, "elder", "--write a", "-k pool:2");
    let mut younger = Script::start(&world, "younger", "-k pool:2", "--write a");
    let other = holder(&world, "-k pool");
    elder.go();
    younger.go();
    // The younger holds two of three slots, so the other session can free only one.
    younger.refused();
    elder.succeeds();
    other.finish().code(0);

    let mut elder = Script::start(&world, "elder", "--write a", "-k pool");
    let mut younger = Script::start(&world, "younger", "-k pool:2", "--write a");
    let other = holder(&world, "-k pool");
    elder.go_and_wait(&world);
    younger.go_and_wait(&world);
    world.canal(["resize", "pool", "--per", "1", "--buckets", "2"]).end().code(0);
    younger.refused();
    other.finish().code(0);
    elder.succeeds();
    wait_until("nothing is left", || world.held("pool") == 0);
    until_nothing(&world);
}
