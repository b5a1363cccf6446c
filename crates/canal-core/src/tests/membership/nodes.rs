//! Requests over nodes: their parts are collected, confirmed with a token and yield. They exclude
//! each other only if enough of their nodes overlap.

use crate::tests::world::{Wish, World, by, grants, key, lease, part, victims};
use crate::*;

const ABC: [u128; 3] = [1, 2, 3];

fn confirmed(request: RequestId, was: Token, token: u64) -> Vec<Outcome> {
    vec![Outcome::ConfirmedAt { request, was, token: Token(token) }]
}

fn not_confirmed(least: Option<Token>) -> Vec<Outcome> {
    vec![Outcome::NotConfirmed { least }]
}

fn ids(nodes: &[u128]) -> Vec<NodeId> {
    nodes.iter().map(|node| NodeId(*node)).collect()
}

#[test]
fn a_confirmation_changes_the_token_everywhere_and_the_next_one_is_larger() {
    let mut world = World::new();
    world.take(by(9).slots("a", 3));
    let granted = world.take(part(1, &ABC).slots("a", 3).read("r"));
    let Granted { request, token, frame, .. } = granted;
    assert_eq!(world.confirm_at(request, 100), confirmed(request, token, 100));
    let hold = world.table.hold_of(request).unwrap();
    assert_eq!((hold.token, hold.provisional), (Token(100), false));
    assert!(world.table.hold(token).is_none() && world.table.hold(Token(100)).is_some());
    assert_eq!(world.table.latest_hold(frame, &key("a")), Some(Token(100)));
    assert_eq!(world.table.latest_hold(frame, &key("r")), Some(Token(100)));
    let holders = |name: &str| world.table.holders(&key(name)).collect::<Vec<_>>();
    assert_eq!(holders("r"), [Token(100)]);
    assert!(holders("a").contains(&Token(100)) && !holders("a").contains(&token));
    assert_eq!(world.take(by(2).slots("b", 1)).token, Token(101));
    // A repetition gets the same answer, and no new token is issued.
    assert_eq!(world.confirm_at(request, 100), confirmed(request, Token(100), 100));
    assert_eq!(world.table.globals().next_token, Token(102));
    world.apply(Change::Expire { frame, renewal: 0 });
    assert_eq!(world.table.past_lease(LeaseId(1)).unwrap().token, Token(100));
    assert_eq!(world.held("a"), 1);
}

#[test]
fn what_has_ended_is_not_confirmed_and_the_next_token_stays() {
    let mut world = World::new();
    let granted = world.take(part(1, &ABC).slots("a", 1));
    world.apply(Change::Withdraw { request: granted.request });
    let next = world.table.globals().next_token;
    assert_eq!(world.confirm_at(granted.request, 1_000), not_confirmed(None));
    assert_eq!(world.table.globals().next_token, next);
    // A waiting part, or a request that is not over nodes, cannot be confirmed.
    let other = world.take(lease(2).slots("a", 1));
    let waiter = world.wait(part(3, &ABC).slots("a", 1));
    for request in [waiter, other.request] {
        assert_eq!(world.confirm_at(request, 1_000), not_confirmed(None));
    }
    assert_eq!(world.table.hold_of(other.request).unwrap().token, other.token);
}

#[test]
fn the_token_of_a_confirmation_is_larger_that_of_no_other_and_bounded() {
    let mut world = World::new();
    let first = world.take(part(1, &ABC).slots("a", 1));
    // It keeps the next number, so that a single node never has to give it another one.
    let other = world.take(by(9).slots("b", 1));
    assert_eq!(other.token.0, first.token.0 + 2);
    let least = Some(world.table.globals().next_token);
    for token in [first.token.0 - 1, other.token.0, CONFIRMED_TOKEN_MAX + 1, u64::MAX] {
        assert_eq!(world.confirm_at(first.request, token), not_confirmed(least), "{token}");
    }
    let token = first.token.0 + 1;
    assert_eq!(
        world.confirm_at(first.request, token),
        confirmed(first.request, first.token, token)
    );
    let most = CONFIRMED_TOKEN_MAX;
    let was = Token(token);
    assert_eq!(world.confirm_at(first.request, most), confirmed(first.request, was, most));
    assert_eq!(world.table.globals().next_token, Token(most + 1));
}

#[test]
fn an_ordinary_confirmation_does_not_confirm_a_part() {
    let mut world = World::new();
    let Granted { request, .. } = world.take(part(1, &ABC).slots("a", 1));
    world.apply(Change::Confirm { request });
    assert!(world.table.hold_of(request).unwrap().provisional);
}

#[test]
fn a_part_that_is_not_confirmed_cannot_be_renewed() {
    let mut world = World::new();
    let granted = world.take(part(1, &ABC).slots("a", 1));
    let renew = Change::Renew { lease: LeaseId(1), host: HostId(0), note: None, ttl_ms: None };
    assert_eq!(world.apply(renew.clone()), [Outcome::LeaseGone]);
    world.confirm_at(granted.request, 100);
    let renewed = Outcome::Renewed { frame: granted.frame, renewal: 1 };
    assert_eq!(world.apply(renew), [renewed]);
}

#[test]
fn a_confirmation_replaces_the_note() {
    let mut world = World::new();
    let Granted { request, token, .. } = world.take(part(1, &ABC).slots("a", 1));
    let note = Some("http://web1".into());
    world.apply(Change::ConfirmAt { request, token, note });
    let note = || world.table.hold(token).unwrap().asked.note.clone();
    assert_eq!(note().as_deref(), Some("http://web1"));
}

#[test]
fn a_key_is_refused_over_a_list_that_need_not_meet_the_one_in_use() {
    let (abc, abd) = ([1, 2, 3], [1, 2, 4]);
    for held in [true, false] {
        let mut world = World::new();
        if !held {
            world.take(by(9).slots("k", 1));
        }
        world.ask(part(1, &abc).require(Require::Majority).slots("k", 1));
        let other = || part(2, &abd).require(Require::Majority);
        let why = Refusal::OtherNodes { item: 1, theirs: ids(&abc) };
        assert_eq!(world.refused(other().slots("x", 1).slots("k", 1)), why);
        // Another key does not matter, and neither does a list that always overlaps.
        world.take(other().slots("x", 1));
        world.wait(part(3, &abc).require(Require::Majority).slots("k", 1));
        world.wait(part(4, &abd).require(Require::All).slots("k", 1));
        world.wait(part(5, &abd).require(Require::Any).slots("k", 1));
        world.wait(part(6, &[1, 2, 3, 4]).require(Require::Majority).slots("k", 1));
    }
}

#[test]
fn lists_are_compared_where_keys_cover_each_other_and_not_among_readers() {
    let mut world = World::new();
    let (abc, de) = ([1, 2, 3], [4, 5]);
    world.take(part(1, &abc).read("db/x"));
    world.take(part(2, &de).read("db/x"));
    world.take(part(3, &de).slots("db/x", 1));
    let why = Refusal::OtherNodes { item: 0, theirs: ids(&abc) };
    assert_eq!(world.refused(part(4, &de).write("db")), why);
    assert_eq!(world.refused(part(5, &de).write("db/x/1")), why);
    world.take(part(6, &de).write("db/y"));
}

#[test]
fn more_than_half_takes_reads_and_locks_of_one_slot_only() {
    let mut world = World::new();
    let part = |name| part(name, &ABC).require(Require::Majority);
    let too_large = |item| Refusal::RequireTooLarge { item };
    assert_eq!(world.refused(part(1).slots("a", 2)), too_large(0));
    assert_eq!(world.refused(part(1).read("r").write("w")), too_large(1));
    world.resize("stored", Some(View::Slots { slots: 3 }));
    assert_eq!(world.refused(part(1).slots("stored", 1)), too_large(0));
    world.take(by(9).slots("followed", 3));
    assert_eq!(world.refused(part(1).bare("followed")), too_large(0));
    let held = world.take(part(1).slots("a", 1).read("r").canal("c", 1, 1).bare("d")).frame;
    // It relies on one slot while it exists.
    let refused = [Outcome::ResizeRefusedOverNodes];
    assert_eq!(world.resize("a", Some(View::Slots { slots: 2 })), refused);
    assert_eq!(world.resize("d", Some(View::Slots { slots: 2 })), refused);
    assert_eq!(world.resize("a", Some(View::Slots { slots: 1 })).len(), 1);
    world.resize("a", None);
    world.apply(Change::Release(Release::All { frame: held }));
    assert_eq!(
        world.resize("a", Some(View::Slots { slots: 2 })),
        [Outcome::Stored { before: None }]
    );
}

#[test]
fn a_list_is_sorted_and_a_spare_does_not_wait() {
    let mut world = World::new();
    let invalid = Refusal::Invalid { item: 0 };
    for nodes in [&[][..], &[2, 1], &[1, 1]] {
        assert_eq!(world.refused(part(1, nodes).slots("a", 1)), invalid);
    }
    let mut spare = part(1, &ABC).slots("a", 1).spare();
    spare.wait = Wait::Yes { until: None };
    assert_eq!(world.refused(spare), invalid);
}

#[test]
fn a_spare_gives_way_to_whoever_would_then_fit_until_it_is_confirmed() {
    let mut world = World::new();
    // A spare yields to a request that may not wait, …
    let spare = world.take(part(1, &ABC).slots("a", 1).spare());
    let (request, outcomes) = world.ask(by(2).slots("a", 1).now());
    assert_eq!(grants(&outcomes), [request]);
    assert!(world.table.hold(spare.token).is_none());
    assert_eq!(world.confirm_at(spare.request, 100), not_confirmed(None));
    world.die(2);
    // … to a writer above it, …
    world.take(part(1, &ABC).read("db/x").spare());
    world.take(by(2).write("db"));
    world.die(2);
    // … but not to a request that would still have to wait,
    let spare = world.take(part(1, &ABC).slots("a", 2).spare());
    let other = world.take(by(2).slots("b", 1));
    let waiter = world.wait(by(3).slots("b", 1).item("a", 2, Some(View::Slots { slots: 2 })));
    assert!(world.table.hold(spare.token).is_some());
    // until that request no longer has to wait.
    let outcomes = world.apply(Change::End { frame: other.frame });
    assert_eq!(grants(&outcomes), [waiter]);
    assert!(world.table.hold(spare.token).is_none());
    // A confirmed spare is an ordinary hold.
    world.die(3);
    let spare = world.take(part(1, &ABC).slots("a", 1).spare());
    world.confirm_at(spare.request, spare.token.0 + 1);
    assert_eq!(world.refused(by(2).slots("a", 1).now()), Refusal::Full { item: 0 });
    world.wait(by(2).slots("a", 1));
}

#[test]
fn a_spare_neither_waits_nor_takes_the_place_of_another() {
    let mut world = World::new();
    let first = world.take(part(1, &ABC).slots("a", 1).spare());
    assert_eq!(world.refused(part(2, &ABC).slots("a", 1).spare()), Refusal::Full { item: 0 });
    assert!(world.table.hold(first.token).is_some());
    // A part that may still be confirmed along with others does not yield either.
    world.take(part(3, &ABC).slots("b", 1));
    assert_eq!(world.refused(by(9).slots("b", 1).now()), Refusal::Full { item: 0 });
}

#[test]
fn a_spare_that_is_asked_for_anew_goes_instead_of_waiting() {
    let mut world = World::new();
    let spare = world.take(part(1, &ABC).slots("a", 1).spare());
    let outcomes = world.apply(Change::Suspend { request: spare.request });
    assert!(
        matches!(outcomes[..], [Outcome::Released { whole: true, .. }, Outcome::FrameGone { .. }]),
        "{outcomes:?}"
    );
    assert!(world.table.waiter(spare.request).is_none());
}

#[test]
fn a_part_that_is_confirmed_is_not_taken_back_as_untold() {
    let mut world = World::new();
    for asked in [part(1, &ABC).slots("a", 1), part(2, &ABC).slots("b", 1).spare()] {
        let told = world.take(asked);
        world.confirm_at(told.request, told.token.0);
        assert_eq!(world.apply(Change::Suspend { request: told.request }), []);
        assert!(world.table.hold_of(told.request).is_some());
    }
}

#[test]
fn a_spare_gives_way_to_a_request_of_its_own_session() {
    let mut world = World::new();
    let two_of_four = |wish: Wish| wish.item("a", 2, Some(View::Buckets { per: 2, buckets: 2 }));
    let spare = world.take(two_of_four(part(1, &ABC)).spare());
    world.take(two_of_four(by(2)));
    let third = by(3).slots("b", 1);
    let inner = world.take(two_of_four(third.under(spare.frame)));
    assert!(world.table.hold(spare.token).is_none());
    assert_eq!(world.table.hold(inner.token).unwrap().items.len(), 2);
}

#[test]
fn a_spare_keeps_nobody_behind_a_request_that_fits_only_beside_it() {
    let mut world = World::new();
    let slots = |slots| Some(View::Slots { slots });
    let spare = world.take(part(1, &ABC).item("b/c", 2, slots(2)).require(Require::Any).spare());
    world.take(by(1).under(spare.frame).write("b"));
    let inner = by(2).under(spare.frame).priority(1).canal("a", 1, 1).item("b/c", 2, slots(1));
    let inner = world.ask(inner).0;
    let other = world.ask(lease(4).write("a")).0;
    assert!(world.waits(inner) && !world.waits(other));
    assert!(world.table.hold_of(other).is_some());
    assert!(world.table.hold(spare.token).is_none());
}

#[test]
fn a_spare_does_not_give_way_to_a_waiter_that_waits_for_its_turn_all_the_same() {
    let mut world = World::new();
    let outer = world.take(part(1, &ABC).write("a"));
    world.confirm_at(outer.request, outer.token.0);
    // One waits for the outer lease, and another one for its turn after that.
    let first = world.wait(by(2).write("a").slots("x", 1));
    world.wait(by(3).slots("x", 1));
    // Neither precedes a request of that session.
    let frame = world.table.lease(LeaseId(1)).unwrap();
    let spare = world.take(part(4, &ABC).under(frame).slots("x", 1).spare());
    assert!(world.table.hold(spare.token).is_some(), "the grant is told after this entry");
    let outcomes =
        world.apply(Change::Release(Release::Hold { token: outer.token, forced: false }));
    assert_eq!(grants(&outcomes), [first]);
    assert!(world.table.hold(spare.token).is_none());
}

#[test]
fn only_as_many_spares_go_as_have_to() {
    let mut world = World::new();
    let spares = [1, 2, 3].map(|name| world.take(part(name, &ABC).slots("a", 3).spare()).token);
    world.take(by(9).slots("a", 3));
    let left = spares.map(|token| world.table.hold(token).is_some());
    assert_eq!(left, [true, true, false], "the youngest goes first");
}

#[test]
fn a_lease_under_another_has_its_locks_too() {
    let mut world = World::new();
    let outer = world.take(part(1, &ABC).write("db"));
    let under = |world: &World, name: u32| {
        let frame = world.table.lease(LeaseId(1)).unwrap();
        part(name, &ABC).under(frame)
    };
    // The outer hold must be firm first.
    let invalid = Refusal::Invalid { item: 0 };
    let wish = under(&world, 2).read("db/x");
    assert_eq!(world.refused(wish), invalid);
    world.confirm_at(outer.request, outer.token.0);
    assert_eq!(world.refused(part(3, &ABC).read("db/x").now()), Refusal::Full { item: 0 });
    let wish = under(&world, 2).read("db/x");
    let inner = world.take(wish);
    assert_eq!(world.table.session(inner.frame), outer.frame);
    // The outer hold ends first: the inner one and its frame stay.
    world.apply(Change::Release(Release::All { frame: outer.frame }));
    assert!(world.table.hold(inner.token).is_some());
    assert!(world.table.lease(LeaseId(1)).is_some());
    let wish = under(&world, 4).read("x");
    assert_eq!(world.refused(wish), invalid, "it holds nothing any more");
    world.apply(Change::Release(Release::All { frame: inner.frame }));
    assert!(world.table.snapshot().frames.is_empty());
    // Never under the hold of another user or of a process, or without nodes.
    let outer = world.take(part(1, &ABC).write("db"));
    world.confirm_at(outer.request, outer.token.0);
    assert_eq!(world.refused(lease(5).under(outer.frame).read("db")), invalid);
    let process = world.take(by(9).slots("p", 1)).frame;
    assert_eq!(world.refused(part(6, &ABC).under(process).read("p")), invalid);
}

#[test]
fn a_deadlock_through_leases_under_leases_is_found() {
    let mut world = World::new();
    for (name, held) in [(1, "a"), (2, "b")] {
        let outer = world.take(part(name, &ABC).write(held));
        world.confirm_at(outer.request, outer.token.0);
    }
    let [one, two] = [1, 2].map(|name| world.table.lease(LeaseId(name)).unwrap());
    let first = world.wait(part(3, &ABC).under(one).write("b"));
    assert_eq!(victims(&world), []);
    let (second, _) = world.ask(part(4, &ABC).under(two).write("a"));
    assert_eq!(victims(&world), [second]);
    assert!(world.waits(first));
    let outcomes = world.apply(Change::Release(Release::All { frame: two }));
    assert_eq!(grants(&outcomes), [first]);
}

#[test]
fn parts_survive_a_snapshot_as_they_are() {
    let mut world = World::new();
    let outer = world.take(part(1, &ABC).require(Require::Majority).slots("a", 1));
    world.confirm_at(outer.request, 77);
    let frame = outer.frame;
    world.take(part(2, &ABC).under(frame).slots("b", 1));
    world.take(part(3, &ABC).slots("c", 1).spare());
    let text = serde_json::to_string(&world.table.snapshot()).unwrap();
    let snapshot: Snapshot = serde_json::from_str(&text).unwrap();
    let table = Table::restore(&snapshot).unwrap();
    assert_eq!(table.snapshot(), world.table.snapshot());
    assert_eq!(table.over_nodes, world.table.over_nodes);
    assert_eq!(table.over_nodes.len(), 3);
}
