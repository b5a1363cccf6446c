//! Frames: locks that a process may request again, and locks that it can never be granted.

use crate::tests::world::{World, by, granted, owner};
use crate::*;

#[test]
pub(super) fn a_slots_lock_is_re_entrant_also_when_full() {
    // sleeplocks: reacquire_when_full, reacquire_all_slots_used, execute_nested_full.
    let mut world = World::new();
    let first = world.take(by(1).slots("lock", 1));
    let again = world.take(by(1).slots("lock", 1));
    assert!(again.items[0].shared);
    assert_eq!(again.items[0].slots, first.items[0].slots);
    assert!(again.token > first.token);
    assert_eq!(world.held("lock"), 1);
}

#[test]
pub(super) fn a_re_entrant_hold_is_counted() {
    // sleeplocks: reacquire_when_room, execute_nested_room. In the original, one release freed
    // everything.
    let mut world = World::new();
    world.take(by(1).slots("lock", 2));
    world.take(by(1).slots("lock", 2));
    assert_eq!(world.held("lock"), 1);
    world.release(1, "lock");
    assert_eq!(world.held("lock"), 1);
    world.release(1, "lock");
    assert_eq!(world.held("lock"), 0);
    assert_eq!(world.release(1, "lock"), [Outcome::NotHeld]);
}

#[test]
fn a_slot_stays_taken_until_its_last_sharer_lets_go() {
    let mut world = World::new();
    let outer = world.take(by(1).item("lock", 2, Some(View::Slots { slots: 2 })));
    let inner = world.take(by(1).item("lock", 1, None));
    world.apply(Change::Release(Release::Hold { token: outer.token, forced: false }));
    assert_eq!(world.held("lock"), 1);
    let other = world.take(by(2).slots("lock", 2));
    assert_eq!(other.items[0].slots, Slots(vec![SlotRange(1, 1)]));
    world.apply(Change::Release(Release::Hold { token: inner.token, forced: false }));
    assert_eq!(world.held("lock"), 1);
}

#[test]
fn an_inner_frame_shares_the_holds_of_its_enclosing_frame_and_a_sibling_does_not() {
    let mut world = World::new();
    let outer = world.take(by(1).slots("lock", 1));
    assert!(world.take(by(2).under(outer.frame).slots("lock", 1)).items[0].shared);
    let link = world.take(by(2).slots("link", 1));
    assert_eq!(link.items[0].acquired, 1);
    world.wait(by(3).under(outer.frame).slots("link", 1));
}

#[test]
fn a_canal_lock_is_not_re_entrant() {
    let mut world = World::new();
    assert_eq!(world.take(by(1).canal("k", 2, 1)).items[0].acquired, 1);
    assert_eq!(world.take(by(1).canal("k", 2, 1)).items[0].acquired, 2);
    assert_eq!(world.refused(by(1).canal("k", 2, 1)), Refusal::OwnDeadlock { item: 0 });
    assert_eq!(world.refused(by(1).canal("k", 2, 1).now()), Refusal::Full { item: 0 });
}

#[test]
fn waiting_for_oneself_is_refused_as_soon_as_it_is_certain() {
    let mut world = World::new();
    world.take(by(1).canal("k", 1, 1));
    let first = world.wait(by(2).canal("k", 1, 1));
    let second = world.wait(by(2).canal("k", 1, 1));
    let frame = world.frame(1);
    let outcomes = world.apply(Change::End { frame });
    assert!(granted(&outcomes, first).is_some());
    let why = Refusal::OwnDeadlock { item: 0 };
    assert!(outcomes.contains(&Outcome::Refused { request: second, why }));
}

#[test]
fn a_second_request_of_a_frame_shares_the_grant_of_the_first() {
    let mut world = World::new();
    world.take(by(1).slots("lock", 1));
    let first = world.wait(by(2).slots("lock", 1));
    let second = world.wait(by(2).slots("lock", 1));
    let third = world.wait(by(3).slots("lock", 1));
    assert_eq!(world.die(1), [first, second]);
    assert!(world.table.waiter(third).is_some());
}

#[test]
fn a_hold_for_descendants_outlives_its_process() {
    let mut world = World::new();
    let mut wish = by(1).slots("lock", 1);
    wish.children = true;
    let kept = world.take(wish);
    world.take(by(1).slots("other", 1));
    let next = world.wait(by(2).slots("lock", 1));
    world.die(1);
    assert_eq!((world.held("lock"), world.held("other")), (1, 0));
    assert!(world.table.hold(kept.token).unwrap().orphaned);
    let end = Release::Hold { token: kept.token, forced: false };
    assert!(granted(&world.apply(Change::Release(end)), next).is_some());
}

#[test]
fn a_provisional_grant_is_released_and_a_confirmed_one_stays() {
    let mut world = World::new();
    let mut wish = by(1).slots("lock", 1);
    wish.provisional = true;
    let grant = world.take(wish.clone());
    assert!(world.table.hold(grant.token).unwrap().provisional);
    world.apply(Change::Withdraw { request: grant.request });
    assert_eq!(world.held("lock"), 0);
    let grant = world.take(wish);
    world.apply(Change::Confirm { request: grant.request });
    assert!(!world.table.hold(grant.token).unwrap().provisional);
    assert_eq!(world.held("lock"), 1);
}

#[test]
fn a_tag_names_one_request() {
    let mut world = World::new();
    world.take(by(1).slots("lock", 1));
    let (Change::Request(mut request), _) = (world.log[0].0.change.clone(), ()) else {
        panic!("the first entry asks")
    };
    std::sync::Arc::make_mut(&mut request).owner = owner(9);
    let outcomes = world.apply(Change::Request(request));
    let request = RequestId(world.table.revision().0);
    assert_eq!(outcomes, [Outcome::Refused { request, why: Refusal::Duplicate }]);
}

/// The request for a job token by the jobserver of a build.
fn token(build: u128, tag: u128, slots: u64, wait: Wait) -> Change {
    let Change::Request(asked) = by(1).slots("cpu", slots).change(Tag(tag)) else { panic!() };
    let mut asked = Request::clone(&asked);
    (asked.owner, asked.wait) = (Owner::Jobserver(Tag(build)), wait);
    Change::Request(asked.into())
}

#[test]
fn each_token_of_a_jobserver_takes_a_slot_of_its_own() {
    let mut world = World::new();
    world.take(by(1).slots("cpu", 3));
    for held in 2..=3 {
        let outcomes = world.apply(token(7, 100 + held, 3, Wait::No));
        assert!(matches!(outcomes[..], [Outcome::Granted(_)]), "{outcomes:?}");
        assert_eq!(u128::from(world.held("cpu")), held);
    }
    let outcomes = world.apply(token(7, 200, 3, Wait::No));
    let full = Refusal::Full { item: 0 };
    assert!(matches!(&outcomes[..], [Outcome::Refused { why, .. }] if *why == full));
    let frame = world.table.frame_of(HostId(0), &Owner::Jobserver(Tag(7))).unwrap();
    world.apply(Change::End { frame });
    assert_eq!(world.held("cpu"), 1);
}

#[test]
fn a_jobserver_never_waits() {
    let mut world = World::new();
    let outcomes = world.apply(token(7, 100, 3, Wait::Yes { until: None }));
    let invalid = Refusal::Invalid { item: 0 };
    assert!(matches!(&outcomes[..], [Outcome::Refused { why, .. }] if *why == invalid));
}
