//! Views: the caller's own, the lock's own, and what happens when they change in use.

use crate::core::tests::world::{World, apply_unchecked, by, grants, key};
use crate::core::*;

fn canal(per: u64, buckets: u64) -> Option<View> {
    Some(View::Buckets { per, buckets })
}

fn slots(slots: u64) -> Option<View> {
    Some(View::Slots { slots })
}

#[test]
fn slot_numbers_are_the_lowest_free_and_stay() {
    let mut world = World::new();
    for slot in 0..4 {
        let granted = world.take(by(slot + 1).canal("k", 3, 2));
        assert_eq!(granted.items[0].slots.iter().collect::<Vec<_>>(), [u64::from(slot)]);
        assert_eq!(
            granted.items[0].view.unwrap().bucket(u64::from(slot)),
            Some(u64::from(slot) / 3)
        );
    }
    world.die(2);
    world.die(4);
    let granted = world.take(by(9).item("k", 2, canal(3, 2)));
    assert_eq!(granted.items[0].slots.iter().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_view_shrinks_and_grows_for_later_requests_only() {
    let mut world = World::new();
    for pid in 1..=6 {
        world.take(by(pid).canal("k", 3, 2));
    }
    let small = world.wait(by(7).canal("k", 3, 1));
    world.take(by(8).canal("k", 3, 3));
    for pid in 1..=4 {
        assert_eq!(world.die(pid), []);
    }
    assert_eq!(world.die(5), [small]);
}

#[test]
fn the_number_of_slots_belongs_to_the_lock_while_it_is_in_use() {
    let mut world = World::new();
    world.take(by(1).slots("k", 3));
    assert_eq!(world.refused(by(2).slots("k", 2)), Refusal::Slots { item: 0, lock: 3 });
    world.take(by(2).bare("k"));
    let report = world.table.report(&key("k"));
    assert_eq!((report.held, report.view), (2, slots(3)));
    world.die(1);
    world.die(2);
    world.take(by(3).slots("k", 2));
}

#[test]
fn a_bare_key_is_a_mutex() {
    let mut world = World::new();
    assert_eq!(world.take(by(1).bare("k")).items[0].view, slots(1));
    world.wait(by(2).bare("k"));
}

#[test]
fn a_key_has_one_kind_while_it_is_in_use() {
    let mut world = World::new();
    world.take(by(1).canal("k", 3, 2));
    let in_use = Kind::Buckets;
    assert_eq!(world.refused(by(2).slots("k", 3)), Refusal::Kind { item: 0, in_use });
    assert_eq!(world.refused(by(2).bare("k")), Refusal::Kind { item: 0, in_use });
    assert_eq!(world.resize("k", slots(3)), [Outcome::ResizeRefused { in_use }]);
    world.die(1);
    world.take(by(2).slots("k", 3));
}

#[test]
fn followers_follow_a_stored_view_live() {
    let mut world = World::new();
    world.resize("k", canal(1, 1));
    world.take(by(1).bare("k"));
    let second = world.wait(by(2).bare("k"));
    let third = world.wait(by(3).bare("k"));
    assert_eq!(grants(&world.resize("k", canal(1, 3))), [second, third]);
}

#[test]
fn a_key_resized_to_zero_keeps_its_waiters() {
    let mut world = World::new();
    world.resize("k", slots(1));
    world.take(by(1).bare("k"));
    let parked = world.wait(by(2).bare("k").bare("other"));
    world.resize("k", slots(0));
    assert_eq!(world.table.why(parked).unwrap().reason, Reason::Drained);
    world.take(by(3).bare("other"));
    assert_eq!(world.die(1), []);
    world.die(3);
    assert_eq!(grants(&world.resize("k", slots(1))), [parked]);
}

#[test]
fn a_parked_waiter_counts_no_bypass() {
    let mut world = World::new();
    world.resize("k", canal(1, 1));
    let parked = world.wait(by(1).item("k", 2, None));
    let why = world.table.why(parked).unwrap().reason;
    assert_eq!(why, Reason::LargerThanLock { count: 2, capacity: 1 });
    for pid in 2..200 {
        world.take(by(pid).canal("k", 1, 1));
        world.die(pid);
    }
    assert!(!world.table.waiter(parked).unwrap().barrier);
    assert_eq!(grants(&world.resize("k", canal(1, 2))), [parked]);
}

#[test]
fn more_than_a_stated_view_is_refused_at_once() {
    let mut world = World::new();
    let too_large = Refusal::TooLarge { item: 0, capacity: 2 };
    assert_eq!(world.refused(by(1).item("k", 3, canal(1, 2))), too_large);
    assert_eq!(world.refused(by(1).item("k", 0, canal(1, 2))), Refusal::Invalid { item: 0 });
    assert_eq!(world.refused(by(1)), Refusal::Invalid { item: 0 });
    assert_eq!(world.refused(by(1).bare("k").bare("k")), Refusal::Invalid { item: 1 });
}

#[test]
fn a_stored_number_of_slots_is_binding_for_other_stated_numbers() {
    let mut world = World::new();
    world.resize("k", slots(0));
    assert_eq!(world.refused(by(1).slots("k", 3)), Refusal::Slots { item: 0, lock: 0 });
    world.resize("k", None);
    world.take(by(1).slots("k", 3));
}

#[test]
fn huge_views_cost_nothing_and_overflow_nowhere() {
    let mut table = Table::new(Rules::Current);
    let all = canal(u64::MAX, u64::MAX);
    for (pid, count) in [(1, 1_000_000), (2, u64::MAX), (3, u64::MAX - 1_000_000)] {
        apply_unchecked(&mut table, by(pid).item("k", count, all).change(Tag(u128::from(pid))));
    }
    let slots: Vec<_> = table.holds().map(|hold| hold.items[0].slots.clone()).collect();
    assert_eq!(slots, [Slots(vec![SlotRange(0, 999_999)])]);
    assert_eq!(table.waiting(), 2);
    apply_unchecked(&mut table, Change::End { frame: FrameId(1) });
    assert_eq!(table.report(&key("k")).held, u64::MAX);
}

#[test]
fn every_interleaving_of_a_resize_keeps_the_count_exact() {
    // canal_lock's README: A and B see one bucket of 3, C and D two, E one again; each may come
    // and go at any time. The checks of every step are the test.
    let views = [canal(3, 1), canal(3, 1), canal(3, 2), canal(3, 2), canal(3, 1)];
    let mut orders = 0;
    for order in permutations(&[0, 1, 2, 3, 4]) {
        let mut world = World::new();
        world.take(by(50).item("k", 2, canal(3, 1)));
        for (step, who) in order.iter().enumerate() {
            world.ask(by(*who as u32 + 1).item("k", 1, views[*who]));
            if step % 2 == 1 {
                world.die(order[step - 1] as u32 + 1);
            }
        }
        world.die(50);
        orders += 1;
    }
    assert_eq!(orders, 120);
}

fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in items.iter().enumerate() {
        let rest = [&items[..at], &items[at + 1..]].concat();
        all.extend(permutations(&rest).into_iter().map(|tail| [vec![*first], tail].concat()));
    }
    all
}
