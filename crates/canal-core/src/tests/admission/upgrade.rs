//! Readers that ask to write, and writers among readers that keep arriving.

use crate::tests::world::{World, by, granted, grants, victims};
use crate::*;

#[test]
fn an_upgrade_waits_for_the_other_readers_only() {
    let mut world = World::new();
    for pid in 1..=3 {
        world.take(by(pid).read("x"));
    }
    let upgrade = world.wait(by(1).write("x"));
    // Meanwhile it keeps its read, and blocks later readers.
    let reader = world.wait(by(4).read("x/1"));
    assert_eq!(world.table.holds_in(world.frame(1)).count(), 1);
    assert_eq!(world.die(2), []);
    assert_eq!(world.die(3), [upgrade]);
    // After the release of the write, it reads again.
    assert_eq!(grants(&world.release(1, "x")), [reader]);
    let writer = world.wait(by(5).write("x"));
    assert_eq!(world.die(4), []);
    assert_eq!(grants(&world.release(1, "x")), [writer]);
}

#[test]
fn an_upgrade_goes_before_writers_that_wait() {
    for bypass_max in [1, 64] {
        let mut world = World::new();
        world.apply(Change::Policy { bypass_max });
        world.take(by(1).read("x"));
        world.take(by(2).read("x"));
        let writer = world.wait(by(3).write("x"));
        let above = world.wait(by(4).write("x/1"));
        world.take(by(9).read("x").priority(1));
        world.die(9);
        assert_eq!(world.table.waiter(writer).unwrap().barrier, bypass_max == 1);
        let upgrade = world.wait(by(1).write("x"));
        assert_eq!(world.die(2), [upgrade]);
        assert_eq!(world.die(1), [writer]);
        assert_eq!(world.die(3), [above]);
        assert_eq!(victims(&world), []);
    }
}

#[test]
fn a_lone_reader_is_upgraded_at_once_despite_waiters() {
    let mut world = World::new();
    world.take(by(1).read("x"));
    let writer = world.wait(by(2).write("x"));
    world.take(by(1).write("x"));
    assert_eq!(world.die(1), [writer]);
}

#[test]
fn an_upgrade_can_be_a_nested_run_and_ends_with_it() {
    let mut world = World::new();
    let outer = world.take(by(1).read("x")).frame;
    world.take(by(2).read("x"));
    let upgrade = world.wait(by(3).under(outer).write("x"));
    assert_eq!(world.die(2), [upgrade]);
    let reader = world.wait(by(4).read("x"));
    assert_eq!(world.die(3), [reader]);
    world.refused(by(5).write("x").now());
}

#[test]
fn two_upgraders_are_a_deadlock_and_the_youngest_is_refused() {
    for (first, second) in [(1, 2), (2, 1)] {
        let mut world = World::new();
        world.take(by(1).read("x"));
        world.take(by(2).read("x"));
        let (one, _) = world.ask(by(first).write("x"));
        let (two, _) = world.ask(by(second).write("x"));
        let (old, young) = if first == 1 { (one, two) } else { (two, one) };
        assert_eq!(victims(&world), [young]);
        assert!(world.waits(old));
        // A retry by session 2 deadlocks again while it still reads.
        world.refused(by(2).write("x"));
        assert_eq!(world.die(2), [old]);
        let retry = world.wait(by(2).write("x"));
        assert_eq!(world.die(1), [retry]);
    }
}

#[test]
fn a_writer_among_readers_that_keep_arriving_has_its_turn_when_the_earlier_end() {
    let mut world = World::new();
    for pid in 1..=5 {
        world.take(by(pid).read("x"));
    }
    let writer = world.wait(by(100).write("x"));
    let mut late = Vec::new();
    for pid in 1..=5 {
        late.push(world.wait(by(pid + 5).read("x/below")));
        let next: &[RequestId] = if pid == 5 { &[writer] } else { &[] };
        assert_eq!(world.die(pid), next);
    }
    late.push(world.wait(by(11).read("x")));
    assert_eq!(world.die(100).len(), late.len());
    assert_eq!(world.table.waiters().len(), 0);
}

#[test]
fn readers_of_higher_priority_overtake_a_writer_so_often_and_not_more() {
    for bypass_max in [1, 2, 7, 64] {
        let mut world = World::new();
        world.apply(Change::Policy { bypass_max });
        world.take(by(1).read("x"));
        let writer = world.wait(by(2).write("x"));
        let mut passed = 0;
        // At least one reader is always active.
        for pid in 10.. {
            let (request, outcomes) = world.ask(by(pid).read("x/1").priority(1));
            if granted(&outcomes, request).is_none() {
                break;
            }
            passed += 1;
            world.die(if pid == 10 { 1 } else { pid - 1 });
            assert!(world.waits(writer) && passed <= bypass_max);
        }
        assert_eq!(passed, bypass_max);
        let last = world.table.holds().next().unwrap().frame;
        assert_eq!(grants(&world.apply(Change::End { frame: last })), [writer]);
    }
}
