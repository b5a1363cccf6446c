//! The order of service.

use crate::core::tests::world::{World, apply_unchecked, by, granted, grants, key};
use crate::core::*;

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
    assert_eq!(world.die(3), []);
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
    // S holds a, X waits for {a, b}, S asks b.
    let mut world = World::new();
    world.take(by(1).slots("a", 1));
    let x = world.wait(by(2).slots("a", 1).slots("b", 1));
    assert!(world.take(by(1).slots("b", 1)).bypassed_blockers);
    let waiters = world.table.snapshot().waiters;
    assert_eq!(waiters.iter().find(|waiter| waiter.id == x).unwrap().overtaken, [0, 0]);
    // S holds 1 of 2 slots, X wants 2, S asks its second.
    let mut world = World::new();
    world.take(by(1).item("k", 1, two(2)));
    world.wait(by(2).item("k", 2, two(2)));
    assert!(world.take(by(1).item("k", 1, two(2))).bypassed_blockers);
}

#[test]
fn own_blockers_are_found_through_others_and_when_they_arise_later() {
    // X waits for S or T, and S waits behind X. Then T waits for S: only now X waits for S in any
    // case.
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
    let lost = Change::Withdraw { request: first, why: Withdrawal::Lost };
    assert_eq!(grants(&world.apply(lost)), [second]);
}

#[test]
fn a_cancel_in_the_middle_of_ten_thousand_keeps_the_rest_in_order() {
    let mut table = Table::new(Rules::Current);
    for pid in 1..=10_000 {
        let ask = by(pid).slots("k", 1).change(Tag(u128::from(pid)));
        apply_unchecked(&mut table, ask);
    }
    for request in (2..=10_000).step_by(2) {
        let why = Withdrawal::Cancelled;
        apply_unchecked(&mut table, Change::Withdraw { request: RequestId(request), why });
    }
    for request in (1..9_999).step_by(2) {
        let end = Change::End { frame: FrameId(request) };
        assert_eq!(grants(&apply_unchecked(&mut table, end)), [RequestId(request + 2)]);
    }
}

#[test]
fn a_request_does_not_wait_behind_more_than_it_accepts() {
    let mut world = World::new();
    // One runs, one waits, the rest skip.
    world.take(by(1).slots("k", 1).max_waiting(1));
    let next = world.wait(by(2).slots("k", 1).max_waiting(1));
    let skipped = Refusal::MaxWaiting { item: 0, waiting: 1 };
    assert_eq!(world.refused(by(3).slots("k", 1).max_waiting(1)), skipped);
    // Those that are stopped or parked wait, too.
    world.apply(Change::Suspend { request: next });
    assert_eq!(world.refused(by(3).slots("k", 1).max_waiting(1)), skipped);
    world.pause("k", true);
    assert_eq!(world.refused(by(3).slots("k", 1).max_waiting(1)), skipped);
    assert_eq!(
        world.refused(by(3).slots("k", 1).max_waiting(1).now()),
        Refusal::Paused { item: 0 }
    );
    // Any of its keys counts, and so does a wait of any mode.
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
