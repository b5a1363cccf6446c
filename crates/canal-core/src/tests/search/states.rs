//! States in which waiting itself could close a ring over free locks, and counted items mixed with
//! reads and writes.

use crate::tests::world::{Wish, World, by, victims};
use crate::*;

/// Session 1 holds `held`, another request waits for `wanted`, and session 1 or a nested run of it
/// asks for free locks. That request is granted, none is refused, and the waiter gets its turn when
/// the session has ended. The same holds when the waiter is a barrier because a request for
/// `passing` overtook it.
fn waiting_closes_no_ring(
    held: fn(Wish) -> Wish,
    wanted: fn(Wish) -> Wish,
    asked: fn(Wish) -> Wish,
    passing: fn(Wish) -> Wish,
) {
    for (nested, barrier) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut world = World::new();
        world.apply(Change::Policy { bypass_max: 1 });
        let session = world.take(held(by(1))).frame;
        let waiter = world.wait(wanted(by(2)));
        if barrier {
            world.take(passing(by(9)).priority(1));
            world.die(9);
        }
        assert_eq!(world.table.waiter(waiter).unwrap().barrier, barrier);
        // The same waiter blocks a stranger.
        let stranger = world.wait(asked(by(3)));
        let pid = if nested { 4 } else { 1 };
        world.take(asked(by(pid).under(session)));
        assert_eq!(world.table.session(world.frame(pid)), session);
        if nested {
            assert!(!world.die(pid).contains(&waiter));
        }
        assert!(world.waits(waiter) && world.waits(stranger));
        assert_eq!(world.die(1), [waiter]);
        assert_eq!(world.die(2), [stranger]);
        assert_eq!(victims(&world), []);
    }
}

#[test]
fn a_waiter_for_two_locks_does_not_keep_the_second_from_the_holder_of_the_first() {
    waiting_closes_no_ring(
        |w| w.slots("a", 1),
        |w| w.slots("a", 1).slots("b", 1),
        |w| w.slots("b", 1),
        |w| w.slots("b", 1),
    );
    waiting_closes_no_ring(
        |w| w.write("a"),
        |w| w.write("a").write("b"),
        |w| w.write("b"),
        |w| w.write("b"),
    );
    waiting_closes_no_ring(
        |w| w.read("a"),
        |w| w.write("a").read("b"),
        |w| w.write("b/1"),
        |w| w.write("b"),
    );
}

#[test]
fn a_waiter_for_all_slots_does_not_keep_the_last_from_the_holder_of_the_others() {
    waiting_closes_no_ring(
        |w| w.canal("k", 2, 1),
        |w| w.item("k", 2, Some(View::Buckets { per: 2, buckets: 1 })),
        |w| w.canal("k", 2, 1),
        |w| w.canal("k", 2, 1),
    );
}

#[test]
fn a_waiting_writer_does_not_keep_a_reader_from_reading_below() {
    waiting_closes_no_ring(|w| w.read("a"), |w| w.write("a"), |w| w.read("a/1"), |w| w.read("a"));
    waiting_closes_no_ring(|w| w.read("a/1"), |w| w.write("a"), |w| w.read("a"), |w| w.read("a"));
}

#[test]
fn a_waiting_writer_of_all_does_not_keep_a_job_from_a_second_place() {
    waiting_closes_no_ring(
        |w| w.slots("d/x", 1),
        |w| w.write("d"),
        |w| w.slots("d/y", 1),
        |w| w.slots("d/z", 1),
    );
    waiting_closes_no_ring(
        |w| w.canal("d/x", 2, 1),
        |w| w.write("d"),
        |w| w.read("d").canal("d/x", 2, 1),
        |w| w.canal("d/x", 2, 1),
    );
}

#[test]
fn a_write_of_all_waits_for_the_jobs_below_and_holds_back_new_ones() {
    let mut world = World::new();
    for pid in 1..=20 {
        world.take(by(pid).canal("db/x", 20, 2));
    }
    let migrate = world.wait(by(100).write("db"));
    let late: Vec<RequestId> =
        (21..=40).map(|pid| world.wait(by(pid).canal("db/x", 20, 2))).collect();
    for pid in 1..20 {
        assert_eq!(world.die(pid), []);
    }
    assert_eq!(world.die(20), [migrate]);
    assert_eq!(world.table.holds().len(), 1);
    assert_eq!(world.die(100), late);
    assert_eq!(world.held("db/x"), 20);
}

#[test]
fn a_job_stops_writes_above_and_below_it_but_not_beside_it() {
    let mut world = World::new();
    world.take(by(1).slots("db/x", 2));
    world.take(by(2).write("db/y"));
    world.refused(by(3).read("db").now());
    for name in ["db", "db/x", "db/x/1"] {
        world.refused(by(4).write(name).now());
    }
    // Reads and writes of a counted key are not a mismatch of kinds either.
    world.take(by(5).read("db/x").read("db/x/1"));
    world.take(by(5).slots("db/x", 2));
    // A counted item above is a read below.
    world.take(by(6).slots("all", 9));
    world.refused(by(4).write("all/of/it").now());
    // A counted request below a write waits, however many slots are free.
    world.refused(by(4).slots("db/y/z", 9).now());
}

#[test]
fn a_counted_key_in_a_cycle_is_no_deadlock_while_a_third_can_finish() {
    for third_finishes in [true, false] {
        let mut world = World::new();
        world.take(by(1).slots("k", 2));
        world.take(by(2).write("b"));
        world.take(by(3).slots("k", 2));
        let slot = world.wait(by(2).bare("k"));
        let write = world.wait(by(1).write("b"));
        assert_eq!(victims(&world), []);
        if third_finishes {
            assert_eq!(world.die(3), [slot]);
            assert_eq!(world.die(2), [write]);
            continue;
        }
        // Now requests that wait for session 2 hold both slots.
        let Refusal::Deadlock { cycle } = world.refused(by(3).read("b")) else { panic!() };
        let keys: Vec<&str> = cycle.iter().map(|step| step.key.as_str()).collect();
        assert_eq!(keys, ["b", "k"]);
        assert_eq!(victims(&world).len(), 1);
        assert_eq!(world.die(3), [slot]);
        assert_eq!(world.die(2), [write]);
    }
}

#[test]
fn a_deadlock_over_slots_is_found_when_the_third_begins_to_wait_for_a_fourth() {
    let mut world = World::new();
    world.take(by(1).slots("k", 2));
    world.take(by(2).write("b"));
    world.take(by(3).slots("k", 2));
    world.take(by(4).write("c"));
    world.wait(by(2).bare("k"));
    world.wait(by(1).write("b"));
    let third = world.wait(by(3).write("c"));
    let (fourth, _) = world.ask(by(4).write("b"));
    assert_eq!(victims(&world), [fourth]);
    assert_eq!(world.die(4), [third]);
}

#[test]
fn a_third_that_can_free_one_slot_avoids_no_deadlock_over_two() {
    let mut world = World::new();
    let three = Some(View::Slots { slots: 3 });
    world.take(by(1).write("b"));
    world.take(by(2).item("k", 2, three));
    world.take(by(3).item("k", 1, three));
    let two = world.wait(by(1).item("k", 2, three));
    let (write, _) = world.ask(by(2).write("b"));
    assert_eq!(victims(&world), [write]);
    assert_eq!(world.die(2), [two]);
}

#[test]
fn a_smaller_size_closes_a_cycle_over_slots() {
    let mut world = World::new();
    world.resize("k", Some(View::Buckets { per: 1, buckets: 4 }));
    world.take(by(1).write("b"));
    world.take(by(2).item("k", 2, None));
    world.take(by(3).bare("k"));
    let two = world.wait(by(1).item("k", 2, None));
    let write = world.wait(by(2).write("b"));
    // Session 3 can free the slot that is missing.
    assert_eq!(victims(&world), []);
    world.resize("k", Some(View::Buckets { per: 1, buckets: 3 }));
    assert_eq!(victims(&world), [write]);
    assert_eq!(world.die(2), [two]);
}
