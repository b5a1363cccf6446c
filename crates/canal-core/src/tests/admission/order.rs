//! The order in which requests are granted.

use crate::tests::world::{Wish, World, apply_unchecked, by, granted, grants, key};
use crate::*;

fn two(count: u64) -> Option<View> {
    Some(View::Buckets { per: count, buckets: 1 })
}

/// The newcomer's own place in the queue makes the waiter ahead of it wait for its session.
#[test]
fn one_entry_can_queue_a_request_and_grant_it() {
    let mut world = World::new();
    world.take(by(1).read("a"));
    world.take(by(4).bare("s"));
    world.take(by(3).bare("anything"));
    world.wait(by(4).write("a"));
    world.wait(by(2).priority(1).bare("s").write("a"));
    let (request, outcomes) = world.ask(by(3).priority(1).read("a"));
    let mut words = outcomes.iter().filter(|outcome| outcome.is_word_on(request));
    assert!(matches!(words.next(), Some(Outcome::Queued { .. })), "{outcomes:?}");
    assert!(matches!(words.next(), Some(Outcome::Granted(_))), "{outcomes:?}");
}

#[test]
fn waiters_are_served_in_the_order_of_their_arrival() {
    let mut world = World::new();
    world.take(by(1).slots("k", 1));
    let queue: Vec<RequestId> = (2..52).map(|pid| world.wait(by(pid).slots("k", 1))).collect();
    for (next, pid) in queue.iter().zip(1..) {
        assert_eq!(world.die(pid), [*next]);
    }
}

#[test]
fn higher_priority_goes_first_and_arrival_decides_among_equals() {
    let mut world = World::new();
    world.take(by(1).slots("k", 1));
    let low = world.wait(by(2).slots("k", 1));
    let high = world.wait(by(3).slots("k", 1).priority(5));
    let second = world.wait(by(4).slots("k", 1).priority(5));
    assert_eq!(world.table.served(&key("k")), [high, second, low]);
    assert_eq!(world.die(1), [high]);
    assert_eq!(world.die(3), [second]);
    assert_eq!(world.die(4), [low]);
}

#[test]
fn another_priority_moves_all_waiters_of_a_session_and_may_grant_at_once() {
    let mut world = World::new();
    world.take(by(1).item("k", 1, two(2)));
    let large = world.wait(by(2).item("k", 2, two(2)));
    let [small, last] = [3, 4].map(|pid| world.wait(by(pid).item("k", 1, two(2))));
    assert_eq!(grants(&world.prioritize(small, 1)), [small]);
    assert_eq!(world.prioritize(last, -1), [Outcome::Prioritized { request: last, before: 0 }]);
    assert!(world.prioritize(last, -1).is_empty());
    assert_eq!(world.table.served(&key("k")), [large, last]);
    // A lower priority lets others pass, too.
    assert!(world.die(3).is_empty());
    assert_eq!(grants(&world.prioritize(large, -2)), [last]);
    assert!(world.apply(Change::Prioritize { session: FrameId(99), priority: 1 }).is_empty());
}

#[test]
fn a_try_acquire_does_not_overtake_waiters() {
    let mut world = World::new();
    world.take(by(1).item("k", 2, two(3)));
    let waits = world.wait(by(2).item("k", 2, two(3)));
    assert_eq!(world.refused(by(3).item("k", 1, two(3)).now()), Refusal::Full { item: 0 });
    assert_eq!(world.die(1), [waits]);
}

#[test]
fn a_larger_view_passes_a_waiter_that_does_not_fit_its_own() {
    let mut world = World::new();
    world.take(by(1).canal("k", 1, 1));
    let small = world.wait(by(2).canal("k", 1, 1));
    world.take(by(3).canal("k", 1, 2));
    assert!(world.die(3).is_empty());
    assert_eq!(world.die(1), [small]);
}

#[test]
fn a_waiter_is_overtaken_so_often_and_not_more() {
    let mut world = World::new();
    world.apply(Change::Policy { bypass_max: 64 });
    world.take(by(1).canal("k", 1, 1));
    let starving = world.wait(by(2).canal("k", 1, 1));
    for pid in 10..10 + 64 {
        world.take(by(pid).canal("k", 1, 2).priority(1));
        world.die(pid);
    }
    assert!(world.table.waiter(starving).unwrap().barrier);
    let late = world.wait(by(3).canal("k", 1, 2).priority(9));
    let why = world.table.why(late).unwrap().reason;
    assert_eq!(why, Reason::Behind { waiter: starving, barrier: true });
    assert_eq!(world.die(1), [starving, late]);
}

#[test]
fn priority_starves_no_waiter() {
    let mut world = World::new();
    world.apply(Change::Policy { bypass_max: 5 });
    world.take(by(1).slots("k", 1));
    let patient = world.wait(by(2).slots("k", 1));
    let mut served = Vec::new();
    for pid in 3..13 {
        world.wait(by(pid).slots("k", 1).priority(1));
    }
    for transition in 0..11 {
        let holder = world.table.holds().next().unwrap().frame;
        served.extend(grants(&world.apply(Change::End { frame: holder })));
        assert_eq!(served.len(), transition + 1);
    }
    assert_eq!(served.iter().position(|id| *id == patient), Some(5));
}

/// The number of requests that overtake a waiter. Process 1 holds the key that the waiter wants.
/// `pass` makes the process of the second number ask for that key, ends the holder, which is the
/// process of the first number, and does something that could lose the count.
fn passes(world: &mut World, waiter: RequestId, pass: impl Fn(&mut World, u32, u32)) -> usize {
    let pids: Vec<u32> = [1].into_iter().chain((10..100).step_by(10)).collect();
    let mut rounds = pids.windows(2);
    let granted = rounds.position(|pair| {
        pass(world, pair[0], pair[1]);
        !world.waits(waiter)
    });
    granted.expect("the waiter is passed without end")
}

#[test]
fn a_resize_of_another_key_keeps_the_count_of_bypasses() {
    let mut world = World::new();
    world.apply(Change::Policy { bypass_max: 3 });
    let three = Some(View::Slots { slots: 3 });
    world.resize("b", three);
    world.take(by(1).slots("s", 1));
    world.wait(by(9).slots("s", 1).item("b", 3, None));
    let waiter = world.wait(by(2).slots("s", 1).item("b", 1, None));
    let passed = passes(&mut world, waiter, |world, holder, pid| {
        // The earlier waiter is parked, and becomes active again after the grant.
        world.resize("b", Some(View::Slots { slots: 2 }));
        world.wait(by(pid).slots("s", 1).priority(5));
        world.die(holder);
        world.resize("b", three);
    });
    assert_eq!(passed, 3);
}

#[test]
fn a_pause_a_stop_and_a_snapshot_keep_the_count_of_bypasses() {
    let mut world = World::new();
    world.apply(Change::Policy { bypass_max: 3 });
    world.take(by(1).slots("s", 1));
    let waiter = world.wait(by(2).slots("s", 1).bare("b"));
    let passed = passes(&mut world, waiter, |world, holder, pid| {
        world.pause("b", true);
        world.apply(Change::Suspend { request: waiter });
        world.pause("b", false);
        world.apply(Change::Resume { request: waiter });
        world.table = Table::restore(&world.table.snapshot()).unwrap();
        world.wait(by(pid).slots("s", 1).priority(5));
        world.die(holder);
    });
    assert_eq!(passed, 3);
}

#[test]
fn a_later_request_that_is_a_barrier_because_of_another_key_counts_in_every_mode() {
    let modes: [fn(Wish) -> Wish; 3] =
        [|wish| wish.slots("a", 1), |wish| wish.write("a"), |wish| wish.write("a/b").read("c")];
    for mode in modes {
        let mut world = World::new();
        world.apply(Change::Policy { bypass_max: 2 });
        world.take(mode(by(1)));
        let waiter = world.wait(mode(by(2)));
        let passed = passes(&mut world, waiter, |world, holder, pid| {
            let second = format!("second/{pid}");
            world.take(by(pid + 1).slots(&second, 1));
            world.wait(mode(by(pid)).slots(&second, 1));
            for passing in [pid + 2, pid + 3] {
                world.wait(by(passing).slots(&second, 1).priority(5));
                world.die(passing - 1);
            }
            world.die(pid + 3);
            world.die(holder);
        });
        assert_eq!(passed, 2);
    }
}

#[test]
fn bypasses_at_several_keys_add_up_and_one_grant_counts_once() {
    let mut world = World::new();
    world.apply(Change::Policy { bypass_max: 4 });
    world.take(by(1).slots("a", 1).write("b"));
    let waiter = world.wait(by(2).slots("a", 1).write("b"));
    let later: [fn(Wish) -> Wish; 3] =
        [|wish| wish.slots("a", 1), |wish| wish.read("b"), |wish| wish.slots("a", 1).write("b/c")];
    for (pid, wish) in (3..).zip(later) {
        world.wait(wish(by(pid)).priority(1));
    }
    world.die(1);
    assert_eq!(world.table.waiter(waiter).unwrap().passed, 2);
    world.die(3);
    world.die(4);
    assert_eq!(world.table.waiter(waiter).unwrap().passed, 3);
}

/// Only the waiter that waits for the holder's session is overtaken without being counted.
#[test]
fn a_bypass_of_own_blockers_counts_for_the_others_that_it_passes() {
    let mut world = World::new();
    world.apply(Change::Policy { bypass_max: 2 });
    world.take(by(9).slots("b", 1));
    let patient = world.wait(by(3).slots("b", 1));
    world.take(by(1).slots("a", 1));
    let blocked = world.wait(by(2).slots("a", 1).slots("b", 1).priority(9));
    let asked = world.wait(by(1).slots("b", 1).priority(5));
    assert_eq!(world.die(9), [asked]);
    let count = |request| world.table.waiter(request).unwrap().passed;
    assert_eq!((count(patient), count(blocked)), (1, 0));
}

#[test]
fn a_grant_that_is_taken_back_leaves_the_waiter_its_count() {
    let mut world = World::new();
    world.apply(Change::Policy { bypass_max: 1 });
    world.take(by(1).slots("k", 1));
    let waiter = world.wait(by(2).slots("k", 1));
    let first = world.wait(by(3).slots("k", 1).priority(5));
    assert_eq!(world.die(1), [first]);
    assert_eq!(world.die(3), [waiter]);
    world.apply(Change::Suspend { request: waiter });
    world.take(by(4).slots("k", 1));
    world.apply(Change::Resume { request: waiter });
    world.wait(by(5).slots("k", 1).priority(5));
    assert_eq!(world.die(4), [waiter]);
}

#[test]
fn all_items_are_taken_at_once_and_nothing_while_waiting() {
    let mut world = World::new();
    world.take(by(1).slots("b", 1));
    let both = world.wait(by(2).slots("a", 1).slots("b", 1));
    assert_eq!(world.held("a"), 0);
    // It precedes the others: `a` is reserved for it.
    let later = world.wait(by(3).slots("a", 1));
    assert_eq!(world.die(1), [both]);
    assert_eq!(world.die(2), [later]);
}

#[test]
fn a_waiter_for_a_session_does_not_block_that_session() {
    // S holds a, X waits for {a, b}, S asks for b.
    let mut world = World::new();
    world.take(by(1).slots("a", 1));
    let x = world.wait(by(2).slots("a", 1).slots("b", 1));
    assert!(world.take(by(1).slots("b", 1)).bypassed_blockers);
    assert_eq!(world.table.waiter(x).unwrap().passed, 0);
    // S holds 1 of 2 slots, X wants 2, S asks for its second.
    let mut world = World::new();
    world.take(by(1).item("k", 1, two(2)));
    world.wait(by(2).item("k", 2, two(2)));
    assert!(world.take(by(1).item("k", 1, two(2))).bypassed_blockers);
}

#[test]
fn own_blockers_are_found_through_others_and_when_they_arise_later() {
    // X waits for S or T, and S waits behind X. Then T waits for S: only now X certainly waits for
    // S.
    let mut world = World::new();
    world.take(by(1).item("k", 1, two(4)));
    world.take(by(2).item("k", 2, two(4)));
    world.take(by(1).slots("z", 1));
    let x = world.wait(by(3).item("k", 2, two(4)));
    let s = world.wait(by(1).item("k", 1, two(4)));
    let (t, outcomes) = world.ask(by(2).slots("z", 1));
    assert!(granted(&outcomes, s).is_some_and(|granted| granted.bypassed_blockers));
    assert!(world.table.waiter(t).is_some() && world.table.waiter(x).is_some());
}

#[test]
fn a_barrier_does_not_bar_its_own_blocker() {
    let mut world = World::new();
    world.apply(Change::Policy { bypass_max: 1 });
    world.take(by(1).slots("a", 1));
    world.take(by(9).canal("b", 1, 1));
    let x = world.wait(by(2).slots("a", 1).canal("b", 1, 1));
    world.take(by(3).canal("b", 1, 2));
    assert!(world.table.waiter(x).unwrap().barrier);
    world.die(3);
    assert!(world.take(by(1).canal("b", 1, 2)).bypassed_blockers);
}

#[test]
fn a_stopped_waiter_keeps_its_place_and_blocks_no_other() {
    let mut world = World::new();
    world.take(by(1).slots("k", 1));
    let stopped = world.wait(by(2).slots("k", 1));
    let behind = world.wait(by(3).slots("k", 1));
    let last = world.wait(by(4).slots("k", 1));
    world.apply(Change::Suspend { request: stopped });
    assert_eq!(world.die(1), [behind]);
    world.apply(Change::Resume { request: stopped });
    assert_eq!(world.die(3), [stopped]);
    assert_eq!(world.die(2), [last]);
}

#[test]
fn a_grant_to_a_stopped_waiter_is_taken_back_and_goes_to_the_next() {
    let mut world = World::new();
    world.take(by(1).slots("k", 1));
    let stopped = world.wait(by(2).slots("k", 1));
    let behind = world.wait(by(3).slots("k", 1));
    assert_eq!(world.die(1), [stopped]);
    assert_eq!(grants(&world.apply(Change::Suspend { request: stopped })), [behind]);
    world.apply(Change::Resume { request: stopped });
    assert_eq!(world.die(3), [stopped]);
}

#[test]
fn a_detached_waiter_bars_and_is_not_granted_until_it_is_back() {
    let mut world = World::new();
    world.take(by(1).slots("k", 1));
    let first = world.wait(by(2).slots("k", 1));
    let second = world.wait(by(3).slots("k", 1));
    world.apply(Change::Detach { host: HostId(0) });
    world.apply(Change::Resume { request: second });
    assert_eq!(world.die(1), []);
    let why = world.table.why(second).unwrap().reason;
    assert_eq!(why, Reason::Behind { waiter: first, barrier: false });
    let lost = Change::Withdraw { request: first };
    assert_eq!(grants(&world.apply(lost)), [second]);
}

#[test]
fn a_cancel_in_the_middle_of_ten_thousand_keeps_the_rest_in_order() {
    let mut table = Table::default();
    for pid in 1..=10_000 {
        let ask = by(pid).slots("k", 1).change(Tag(u128::from(pid)));
        apply_unchecked(&mut table, ask);
    }
    for request in (2..=10_000).step_by(2) {
        apply_unchecked(&mut table, Change::Withdraw { request: RequestId(request) });
    }
    for request in (1..9_999).step_by(2) {
        let end = Change::End { frame: FrameId(request) };
        assert_eq!(grants(&apply_unchecked(&mut table, end)), [RequestId(request + 2)]);
    }
}

#[test]
fn a_request_does_not_wait_behind_more_than_it_accepts() {
    let mut world = World::new();
    // One runs, one waits, the rest are skipped.
    world.take(by(1).slots("k", 1).max_waiting(1));
    let next = world.wait(by(2).slots("k", 1).max_waiting(1));
    let skipped = Refusal::MaxWaiting { item: 0, waiting: 1 };
    assert_eq!(world.refused(by(3).slots("k", 1).max_waiting(1)), skipped);
    // Stopped or parked waiters count too.
    world.apply(Change::Suspend { request: next });
    assert_eq!(world.refused(by(3).slots("k", 1).max_waiting(1)), skipped);
    world.pause("k", true);
    assert_eq!(world.refused(by(3).slots("k", 1).max_waiting(1)), skipped);
    assert_eq!(
        world.refused(by(3).slots("k", 1).max_waiting(1).now()),
        Refusal::Paused { item: 0 }
    );
    // Each of its keys counts, and so does a wait in any mode.
    let both = by(3).bare("free").bare("k").max_waiting(1);
    assert_eq!(world.refused(both), Refusal::MaxWaiting { item: 1, waiting: 1 });
    let write = Refusal::MaxWaiting { item: 0, waiting: 1 };
    assert_eq!(world.refused(by(3).write("k").max_waiting(1)), write);
    world.pause("k", false);
    // A request that need not wait is not refused.
    world.take(by(4).slots("k", 2).max_waiting(0));
    let last = world.wait(by(5).slots("k", 1).max_waiting(2));
    assert_eq!(world.die(4), []);
    assert_eq!(world.die(1), [last]);
}
