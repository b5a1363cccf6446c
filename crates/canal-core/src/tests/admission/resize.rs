//! Sizes: the stored one, the caller's own and the one given to a caller without a size; requests
//! that can never fit; pauses.

use crate::tests::world::{World, apply_unchecked, by, granted, grants, key};
use crate::*;

fn canal(per: u64, buckets: u64) -> Option<View> {
    Some(View::Buckets { per, buckets })
}

fn slots(slots: u64) -> Option<View> {
    Some(View::Slots { slots })
}

/// The kind in use of the key `k`, else the kind of its stored view.
fn kind(table: &Table) -> Option<Kind> {
    table.tree.lock(&key("k")).effective_kind()
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
fn each_caller_counts_by_its_own_size_in_both_kinds() {
    for view in [slots as fn(u64) -> Option<View>, |n| canal(n, 1)] {
        let mut world = World::new();
        world.take(by(1).item("k", 1, view(3)));
        world.take(by(2).item("k", 1, view(2)));
        let small = world.wait(by(3).item("k", 1, view(2)));
        world.take(by(4).item("k", 1, view(4)));
        assert_eq!(world.refused(by(5).item("k", 1, view(3)).now()), Refusal::Full { item: 0 });
        assert_eq!(world.die(4), []);
        assert_eq!(world.die(1), [small]);
    }
}

#[test]
fn a_caller_without_a_size_follows_the_latest_hold_that_states_one() {
    let mut world = World::new();
    world.take(by(1).slots("k", 3));
    assert_eq!(world.table.effective_view(&key("k")), slots(3));
    assert_eq!(world.take(by(2).bare("k")).items[0].view, slots(3));
    world.take(by(3).slots("k", 5));
    assert_eq!(world.take(by(4).bare("k")).items[0].view, slots(5));
    world.die(3);
    // A follower keeps its size, and sets none for others.
    let full = Refusal::Full { item: 0 };
    assert_eq!(world.refused(by(5).bare("k").now()), full, "3 of 3");
    world.die(1);
    assert_eq!(world.table.effective_view(&key("k")), slots(1));
    assert_eq!(world.refused(by(5).bare("k").now()), full, "2 of 1");
    world.take(by(5).slots("k", 3));
}

#[test]
fn a_waiter_keeps_the_size_that_it_was_given() {
    let mut world = World::new();
    world.take(by(1).slots("k", 2));
    world.take(by(2).slots("k", 2));
    let first = world.wait(by(3).bare("k"));
    let second = world.wait(by(4).bare("k"));
    world.die(1);
    assert_eq!(world.table.hold_of(first).unwrap().items[0].view, slots(2));
    // No request states a size now: a newcomer runs alone or waits.
    assert_eq!(world.die(2), [second]);
    let alone = world.wait(by(5).bare("k"));
    assert_eq!(world.die(3), []);
    assert_eq!(world.die(4), [alone]);
}

#[test]
fn a_grant_that_is_taken_back_keeps_its_size() {
    let mut world = World::new();
    world.take(by(1).slots("k", 2));
    let untold = world.take(by(2).bare("k")).request;
    world.apply(Change::Suspend { request: untold });
    world.die(1);
    world.take(by(3).bare("k"));
    assert_eq!(grants(&world.apply(Change::Resume { request: untold })), [untold]);
}

#[test]
fn sharing_holds_and_waiters_set_no_size_and_an_heir_has_the_size_that_it_inherits() {
    let mut world = World::new();
    let outer = world.take(by(1).slots("k", 2));
    let inner = world.take(by(2).under(outer.frame).slots("k", 9));
    assert!(inner.items[0].shared);
    assert_eq!(inner.items[0].view, slots(2));
    world.take(by(3).bare("k"));
    world.wait(by(4).slots("k", 1));
    assert_eq!(world.table.effective_view(&key("k")), slots(2));
    world.apply(Change::Release(Release::Hold { token: outer.token, forced: false }));
    assert_eq!(world.table.hold(inner.token).unwrap().items[0].view, slots(2));
    assert_eq!(world.table.effective_view(&key("k")), slots(2));
}

#[test]
fn a_stored_size_binds_everybody_and_reaches_those_who_wait() {
    let mut world = World::new();
    world.resize("k", slots(1));
    world.take(by(1).slots("k", 3));
    let stated = world.wait(by(2).slots("k", 3));
    let bare = world.wait(by(3).bare("k"));
    assert_eq!(world.table.effective_view(&key("k")), slots(1));
    assert_eq!(grants(&world.resize("k", slots(2))), [stated]);
    // Without the stored size, each request has its own again: the holders stated 3, and the waiter
    // was given 3 when it arrived.
    assert_eq!(grants(&world.resize("k", None)), [bare]);
    assert_eq!(world.table.effective_view(&key("k")), slots(3));
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
    assert_eq!(world.resize("k", slots(3)), [Outcome::ResizeRefused { in_use }]);
    // A request without a size takes the kind in use.
    assert_eq!(world.take(by(2).bare("k")).items[0].view, canal(3, 2));
    world.die(1);
    assert_eq!(world.refused(by(3).bare("k").now()), Refusal::Full { item: 0 });
    assert_eq!(world.refused(by(3).slots("k", 3)), Refusal::Kind { item: 0, in_use });
    world.die(2);
    world.take(by(2).slots("k", 3));
}

#[test]
fn a_stored_size_fixes_the_kind_of_an_idle_key() {
    let mut world = World::new();
    world.resize("k", canal(2, 1));
    let in_use = Kind::Buckets;
    assert_eq!(world.refused(by(1).slots("k", 2)), Refusal::Kind { item: 0, in_use });
    assert_eq!(world.take(by(1).bare("k")).items[0].view, canal(2, 1));
    assert_eq!(kind(&world.table), Some(in_use));
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
fn what_can_never_fit_is_refused_at_once() {
    let mut world = World::new();
    let too_large = |capacity| Refusal::TooLarge { item: 0, capacity };
    assert_eq!(world.refused(by(1).item("k", 3, canal(1, 2))), too_large(2));
    assert_eq!(world.refused(by(1).item("k", 2, None)), too_large(1));
    assert_eq!(world.refused(by(1).item("k", 2, None).now()), too_large(1));
    assert_eq!(world.refused(by(1).item("k", 0, canal(1, 2))), Refusal::Invalid { item: 0 });
    assert_eq!(world.refused(by(1)), Refusal::Invalid { item: 0 });
    assert_eq!(world.refused(by(1).bare("k").bare("k")), Refusal::Invalid { item: 1 });
    world.resize("k", slots(2));
    assert_eq!(world.refused(by(1).item("k", 3, slots(5))), too_large(2));
    world.take(by(1).item("k", 2, slots(1)));
}

#[test]
fn a_request_that_shares_its_own_slots_fits_whatever_the_size() {
    let mut world = World::new();
    let outer = world.take(by(1).item("k", 2, slots(2))).frame;
    world.resize("k", slots(1));
    world.pause("k", true);
    assert!(world.take(by(1).item("k", 2, None).now()).items[0].shared);
    assert!(world.take(by(2).under(outer).item("k", 2, slots(1))).items[0].shared);
    assert_eq!(world.refused(by(1).item("k", 3, None).now()), Refusal::Paused { item: 0 });
}

#[test]
fn a_waiter_that_a_smaller_stored_size_overtakes_is_parked() {
    let mut world = World::new();
    world.resize("k", canal(1, 2));
    world.take(by(1).bare("k"));
    let parked = world.wait(by(2).item("k", 2, None));
    let behind = world.wait(by(3).bare("k"));
    assert_eq!(grants(&world.resize("k", canal(1, 1))), []);
    let why = world.table.why(parked).unwrap().reason;
    assert_eq!(why, Reason::LargerThanLock { count: 2, capacity: 1 });
    assert_eq!(world.die(1), [behind]);
    world.die(3);
    assert_eq!(grants(&world.resize("k", canal(2, 2))), [parked]);
}

#[test]
fn a_waiter_that_a_smaller_size_leaves_to_itself_is_refused() {
    let mut world = World::new();
    world.take(by(1).canal("k", 3, 1));
    world.take(by(9).canal("k", 3, 1));
    let waits = world.wait(by(1).item("k", 2, canal(3, 1)));
    let why = Refusal::OwnDeadlock { item: 0 };
    assert!(world.resize("k", canal(1, 1)).contains(&Outcome::Refused { request: waits, why }));
}

#[test]
fn a_parked_waiter_counts_no_bypass() {
    let mut world = World::new();
    world.resize("k", canal(1, 2));
    world.take(by(1).bare("k"));
    let parked = world.wait(by(2).item("k", 2, None));
    world.resize("k", canal(1, 1));
    world.die(1);
    for pid in 3..200 {
        world.take(by(pid).canal("k", 1, 1));
        world.die(pid);
    }
    assert!(!world.table.waiter(parked).unwrap().barrier);
    assert_eq!(grants(&world.resize("k", canal(1, 2))), [parked]);
}

#[test]
fn a_paused_key_keeps_its_waiters_and_its_size() {
    let mut world = World::new();
    world.resize("k", slots(1));
    world.take(by(1).bare("k"));
    let parked = world.wait(by(2).bare("k").bare("other"));
    assert_eq!(world.pause("k", true), [Outcome::Stored { before: slots(1) }]);
    assert_eq!(world.table.why(parked).unwrap().reason, Reason::Paused);
    world.take(by(3).bare("other"));
    assert_eq!(world.die(1), []);
    assert_eq!(world.refused(by(4).bare("k").now()), Refusal::Paused { item: 0 });
    // Storing a size does not resume the key.
    assert_eq!(grants(&world.resize("k", slots(2))), []);
    let later = world.wait(by(4).slots("k", 7));
    assert_eq!(world.table.effective_view(&key("k")), slots(2));
    world.die(3);
    assert_eq!(grants(&world.pause("k", false)), [parked, later]);
    assert_eq!(world.pause("k", false), [Outcome::Stored { before: slots(2) }]);
}

#[test]
fn a_pause_needs_no_use_and_no_size_of_the_key() {
    let mut world = World::new();
    world.pause("k", true);
    let view = world.table.effective_view(&key("k"));
    assert_eq!((kind(&world.table), view), (None, None));
    assert!(world.table.settings(&key("k")).paused);
    assert_eq!(world.table.keys(None).count(), 1);
    let first = world.wait(by(1).canal("k", 1, 1));
    assert_eq!(grants(&world.pause("k", false)), [first]);
    world.die(1);
    assert_eq!(world.table.keys(None).count(), 0);
}

#[test]
fn what_came_during_a_pause_and_never_fits_is_refused_when_the_key_is_resumed() {
    let mut world = World::new();
    world.pause("k", true);
    world.pause("other", true);
    let too_many = world.wait(by(1).item("k", 3, slots(2)));
    let nowhere = world.wait(by(2).canal("other", 2, 0));
    let both = world.wait(by(3).item("k", 3, slots(2)).bare("other"));
    let fits = world.wait(by(4).bare("k"));
    let refused = |request, capacity| {
        let why = Refusal::TooLarge { item: 0, capacity };
        Outcome::Refused { request, why }
    };
    let resumed = world.pause("k", false);
    assert!(resumed.contains(&refused(too_many, 2)));
    assert!(granted(&resumed, fits).is_some() && world.waits(both));
    let resumed = world.pause("other", false);
    assert!(resumed.contains(&refused(nowhere, 0)) && resumed.contains(&refused(both, 2)));
}

#[test]
fn a_waiter_is_parked_by_a_pause_as_soon_as_it_can_share_no_more() {
    let mut world = World::new();
    let outer = world.take(by(1).slots("k", 1));
    world.take(by(9).slots("busy", 1));
    let inner = world.wait(by(2).under(outer.frame).slots("k", 1).slots("busy", 1));
    world.pause("k", true);
    let stranger = world.wait(by(3).slots("busy", 1));
    assert!(matches!(world.table.why(inner).unwrap().reason, Reason::Full { .. }));
    world.apply(Change::Release(Release::Hold { token: outer.token, forced: false }));
    assert_eq!(world.table.why(inner).unwrap().reason, Reason::Paused);
    assert_eq!(world.die(9), [stranger]);
    world.die(3);
    assert_eq!(grants(&world.pause("k", false)), [inner]);
}

#[test]
fn huge_views_cost_nothing_and_overflow_nowhere() {
    let mut table = Table::default();
    let all = canal(u64::MAX, u64::MAX);
    for (pid, count) in [(1, 1_000_000), (2, u64::MAX), (3, u64::MAX - 1_000_000)] {
        apply_unchecked(&mut table, by(pid).item("k", count, all).change(Tag(u128::from(pid))));
    }
    let slots: Vec<_> = table.holds().map(|hold| hold.items[0].slots.clone()).collect();
    assert_eq!(slots, [Slots(vec![SlotRange(0, 999_999)])]);
    assert_eq!(table.waiters().len(), 2);
    apply_unchecked(&mut table, Change::End { frame: FrameId(1) });
    assert_eq!(table.held_of(&key("k")), u64::MAX);
}

#[test]
fn every_interleaving_of_a_resize_keeps_the_count_exact() {
    // canal_lock's README: A and B see one bucket of 3, C and D see two, E sees one again, and each
    // may come and go at any time. The test is in the checks of every step.
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
