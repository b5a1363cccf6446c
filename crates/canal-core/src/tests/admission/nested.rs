//! Nested runs, and locks that are acquired and released over time: which sessions exclude each
//! other, and which are part of a cycle.

use crate::tests::world::{World, by, grants, victims};
use crate::*;

#[test]
fn siblings_exclude_each_other_and_a_child_passes_the_holds_that_enclose_it() {
    let mut world = World::new();
    let make = world.take(by(1).write("build")).frame;
    let link = world.take(by(2).under(make).slots("link", 1)).frame;
    let second = world.wait(by(3).under(make).slots("link", 1));
    // Both may use the locks of the outermost frame, but may not both write the same part of them.
    world.take(by(2).write("build/out"));
    world.take(by(4).under(make).write("build/other"));
    let third = world.wait(by(4).under(make).read("build/out"));
    // The innermost frame is exempt from all frames that enclose it.
    world.take(by(5).under(link).write("build/out/1"));
    // The outer frame is not exempt from the holds of the inner one: it waits until that has ended.
    let outer = world.wait(by(1).write("build/other"));
    let stranger = world.wait(by(6).read("build/out"));
    assert_eq!(world.die(5), []);
    assert_eq!(world.die(2), [second, third]);
    assert_eq!(world.die(4), [outer]);
    assert_eq!(world.die(3), []);
    assert_eq!(world.die(1), [stranger]);
    assert_eq!(victims(&world), []);
}

#[test]
fn siblings_of_one_session_can_deadlock() {
    let mut world = World::new();
    let make = world.take(by(1).write("build")).frame;
    world.take(by(2).under(make).write("x"));
    world.take(by(3).under(make).write("y"));
    let first = world.wait(by(2).write("y"));
    let Refusal::Deadlock { cycle } = world.refused(by(3).write("x")) else { panic!() };
    assert_eq!(cycle.len(), 2);
    assert_eq!(world.die(3), [first]);
}

#[test]
fn a_killed_process_takes_part_in_no_deadlock() {
    for kill in 1..=3 {
        let mut world = World::new();
        for (pid, name) in [(1, "a"), (2, "b"), (3, "c")] {
            world.take(by(pid).write(name));
        }
        world.wait(by(1).write("b"));
        world.wait(by(2).write("c"));
        world.die(kill);
        world.ask(by(3).write("a"));
        assert_eq!(victims(&world), [], "{kill} was killed");
    }
}

#[test]
fn a_released_or_cancelled_request_takes_part_in_no_deadlock() {
    let mut world = World::new();
    world.take(by(1).write("a"));
    world.take(by(1).write("a2"));
    world.take(by(2).write("b"));
    let cancelled = world.wait(by(1).write("b"));
    world.apply(Change::Withdraw { request: cancelled });
    let waits = world.wait(by(2).write("a"));
    assert_eq!(grants(&world.release(1, "a")), [waits]);
    world.wait(by(1).write("b"));
    assert_eq!(victims(&world), []);
    // Its remaining holds count.
    assert!(matches!(world.refused(by(2).write("a2")), Refusal::Deadlock { .. }));
}

#[test]
fn a_frame_ends_only_after_the_requests_inside_it_are_answered() {
    for outer_first in [true, false] {
        let mut world = World::new();
        let mut open = |outer: bool| {
            if outer { world.take(by(1).write("a")) } else { world.take(by(2).write("b")) }.frame
        };
        let (one, two) = (open(outer_first), open(!outer_first));
        let outer = if outer_first { one } else { two };
        let inner = world.wait(by(3).under(outer).write("b"));
        let (other, _) = world.ask(by(2).write("a"));
        // The victim is the session that began last, not the frame that did.
        assert_eq!(victims(&world), [if outer_first { other } else { inner }]);
        if outer_first {
            assert_eq!(world.die(2), [inner]);
        } else {
            world.die(3);
            assert_eq!(world.die(1), [other]);
        }
    }
}

#[test]
fn a_running_child_does_not_deadlock_with_waiters_for_its_parent() {
    let mut world = World::new();
    let outer = world.take(by(1).write("a")).frame;
    world.take(by(2).write("b"));
    world.take(by(3).under(outer).write("c"));
    let waits = world.wait(by(2).write("a"));
    let child = world.wait(by(1).write("c"));
    assert_eq!(world.die(3), [child]);
    assert_eq!(world.die(1), [waits]);
    assert_eq!(victims(&world), []);
}

#[test]
fn locks_over_time_without_nesting_take_part() {
    // acquire a … acquire b … release a, on behalf of one shell.
    let mut world = World::new();
    world.take(by(1).write("a"));
    world.take(by(2).write("c"));
    world.take(by(1).write("b"));
    let waits = world.wait(by(2).write("b"));
    world.release(1, "a");
    world.take(by(2).write("a"));
    assert_eq!(world.release(1, "a"), [Outcome::NotHeld]);
    // Session 2 waits for `b`, which is still held.
    let (late, _) = world.ask(by(1).write("a"));
    assert_eq!(victims(&world), [waits]);
    assert!(world.waits(late));
}

#[test]
fn a_run_shares_its_own_slots_again_when_a_write_inside_it_has_ended() {
    let mut world = World::new();
    let outer = world.take(by(1).slots("k", 1)).frame;
    world.take(by(2).under(outer).write("k"));
    let again = world.wait(by(1).slots("k", 1));
    assert_eq!(world.die(2), [again]);
}

#[test]
fn a_parent_that_has_ended_when_its_request_comes_is_none() {
    for gone in [true, false] {
        let mut world = World::new();
        let mut outer = by(1).write("a");
        outer.children = !gone;
        let outer = world.take(outer).frame;
        world.die(1);
        assert_eq!(world.table.frame(outer).is_none(), gone, "else kept for its descendants");
        let held = world.take(by(2).under(outer).write("b"));
        assert_eq!(world.table.frame(held.frame).unwrap().parent, None);
        assert_eq!(world.table.session(held.frame), held.frame);
        assert_eq!(world.table.hold(held.token).unwrap().asked.parent, None);
        let waits = world.wait(by(3).under(outer).write("b"));
        assert_eq!(world.table.waiter(waits).unwrap().request.parent, None);
        assert_eq!(world.die(2), [waits]);
        let (inside, _) = world.ask(by(4).under(outer).write("a"));
        assert_eq!(world.waits(inside), !gone, "it is no part of what has ended");
    }
}

#[test]
fn a_request_within_an_open_frame_is_inside_all_its_enclosing_frames() {
    let mut world = World::new();
    let outer = world.take(by(1).write("a")).frame;
    let inner = world.take(by(2).under(outer).write("b")).frame;
    let other = world.take(by(3).write("c")).frame;
    let again = world.take(by(2).under(other).write("d"));
    assert_eq!(again.frame, inner);
    assert_eq!(world.table.hold(again.token).unwrap().asked.parent, Some(outer));
}
