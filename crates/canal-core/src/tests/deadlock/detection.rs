//! Regressions in deadlock detection that long random histories once found, reduced to the smallest
//! case.

use crate::tests::world::{Wish, World, apply_unchecked, by, granted, victims};
use crate::*;

#[test]
fn a_deadlock_is_found_when_the_request_that_avoided_it_is_withdrawn() {
    // The inner request will certainly be refused once the outer frame has its own slot, so it does
    // not block others forever. If that frame's process ends first, it does.
    let mut world = World::new();
    let two = Some(View::Slots { slots: 2 });
    let mut wish = by(1).write("b");
    wish.children = true;
    let outer = world.take(wish).frame;
    world.take(by(2).write("a"));
    world.wait(by(2).write("b/c"));
    let sibling = world.take(by(3).under(outer).write("b")).frame;
    world.wait(by(1).item("b", 1, two));
    let inner =
        world.wait(by(4).under(outer).item("b", 2, Some(View::Slots { slots: 2 })).write("a"));
    assert_eq!(world.table.session(sibling), outer);
    world.die(1);
    assert_eq!(victims(&world).len(), 1);
    assert!(world.waits(inner));
}

#[test]
fn slots_shared_with_a_child_are_ones_own_when_it_ends() {
    // The outer frame keeps one of two slots whatever else ends, so it can never have two more.
    let mut world = World::new();
    let two = Some(View::Slots { slots: 2 });
    let outer = world.take(by(1).item("k", 2, two));
    world.take(by(2).under(outer.frame).item("k", 2, None));
    world.take(by(1).item("k", 1, None));
    world.take(by(2).write("k"));
    let both = world.wait(by(1).item("k", 2, None));
    let outcomes =
        world.apply(Change::Release(Release::Hold { token: outer.token, forced: false }));
    let why = Refusal::OwnDeadlock { item: 0 };
    assert!(outcomes.contains(&Outcome::Refused { request: both, why }), "{outcomes:?}");
}

#[test]
fn a_detached_request_that_can_only_wait_for_itself_is_refused() {
    let mut world = World::new();
    world.take(by(1).canal("k", 1, 1));
    let first = world.wait(by(2).canal("k", 1, 1));
    let second = world.wait(by(2).canal("k", 1, 1));
    world.apply(Change::Detach { host: HostId(0) });
    world.apply(Change::Resume { request: first });
    let frame = world.frame(1);
    let outcomes = world.apply(Change::End { frame });
    assert!(granted(&outcomes, first).is_some());
    let why = Refusal::OwnDeadlock { item: 0 };
    assert!(outcomes.contains(&Outcome::Refused { request: second, why }), "{outcomes:?}");
}

#[test]
fn sessions_about_to_pass_each_other_wait_for_no_other() {
    // The second writer waits for the first one's session, which precedes it once the reader has
    // ended. A stranger does not.
    let mut world = World::new();
    let hold = Some(View::Buckets { per: 2, buckets: 1 });
    world.take(by(1).item("k", 2, hold));
    world.take(by(2).write("mine"));
    world.take(by(3).read("k"));
    let upgrade = world.wait(by(1).write("k"));
    let stranger = world.wait(by(2).read("k"));
    let writer = world.wait(by(4).write("k").priority(1));
    assert!(world.waits(stranger));
    assert_eq!(world.die(3), [upgrade]);
    assert!(world.waits(stranger) && world.waits(writer));
}

#[test]
fn a_waiter_behind_a_cycle_is_no_reason_to_refuse_a_member() {
    // Refusing the inner request would help a bystander but keep the ring.
    let mut world = World::new();
    let four = Some(View::Buckets { per: 2, buckets: 2 });
    world.take(by(1).item("b/c", 2, four));
    world.take(by(2).write("a"));
    let outer = world.take(by(3).item("b/c", 2, four)).frame;
    world.take(by(4).under(outer).slots("b", 1));
    world.wait(by(4).write("b"));
    world.wait(by(3).write("b"));
    let bystander = world.wait(by(2).slots("b", 1));
    let (last, _) = world.ask(by(1).write("b"));
    assert_eq!(victims(&world), [last]);
    assert!(world.waits(bystander));
}

#[test]
fn slots_that_are_shared_are_no_step_of_a_cycle() {
    let mut world = World::new();
    world.take(by(1).slots("a", 2));
    world.take(by(2).slots("a", 2));
    world.take(by(1).write("b"));
    let both = by(2).slots("a", 2).write("b");
    let waits = world.wait(both);
    let why = world.table.why(waits).unwrap();
    assert_eq!((why.key.as_str(), why.item), ("b", 1));
    assert_eq!(world.table.blockers(waits).len(), 1);
    world.ask(by(1).write("a"));
    assert_eq!(victims(&world), [waits]);
}

/// The sessions that are refused when 1 and 2 wait for each other, and 3, 4 and 5 wait for each
/// other and for 1. `t` has one free slot, and session 4 holds the other one.
fn refused_of_two_rings(wish_of_1: Wish) -> Vec<usize> {
    let mut table = Table::default();
    let mut refused = Vec::new();
    let mut ask = |wish: Wish| {
        let change = wish.change(Tag(table.revision().0.into()));
        let outcomes = apply_unchecked(&mut table, change);
        refused.extend(outcomes.into_iter().filter_map(|outcome| match outcome {
            Outcome::Refused { request, .. } => Some(request),
            _ => None,
        }));
        RequestId(table.revision().0)
    };
    ask(by(1).bare("s").canal("p", 2, 1));
    ask(by(2).read("y"));
    ask(by(3).canal("p", 2, 1));
    ask(by(4).canal("q", 2, 1).write("x").slots("t", 2));
    ask(by(5).canal("q", 2, 1));
    let third = ask(by(3).canal("q", 2, 1));
    let first = ask(wish_of_1);
    let fifth = ask(by(5).write("x"));
    let fourth = ask(by(4).canal("p", 2, 1));
    let second = ask(by(2).bare("s"));
    let asked = [first, second, third, fourth, fifth];
    let session = |id: &RequestId| asked.iter().position(|it| it == id).unwrap() + 1;
    refused.iter().map(session).collect()
}

/// A second victim is refused: see `Table::victim`.
#[test]
fn a_cycle_that_waits_for_another_is_broken_first_where_its_members_are_reached() {
    assert_eq!(refused_of_two_rings(by(1).write("y")), [2]);
    assert_eq!(refused_of_two_rings(by(1).slots("t", 2).write("y")), [5, 2]);
}
