//! The leader of a key.

use crate::tests::world::{World, by, key};
use crate::{Change, Leadership, View};

fn leader(world: &World) -> Leadership {
    world.table.leader(&key("x"))
}

#[test]
fn the_only_holder_leads_and_the_next_one_follows() {
    let mut world = World::new();
    assert_eq!(leader(&world), Leadership::Vacant);
    let first = world.take(by(1).bare("x"));
    world.wait(by(2).bare("x"));
    assert_eq!(leader(&world), Leadership::Led(first.token));
    world.die(1);
    let Leadership::Led(second) = leader(&world) else { panic!("{:?}", leader(&world)) };
    assert!(second > first.token);
    world.die(2);
    assert_eq!(leader(&world), Leadership::Vacant);
}

#[test]
fn the_writer_of_a_key_leads_and_what_lies_above_or_below_does_not_count() {
    let mut world = World::new();
    world.take(by(1).bare("x/y"));
    world.take(by(2).read("w"));
    assert_eq!(leader(&world), Leadership::Vacant);
    world.die(1);
    let writer = world.take(by(3).write("x"));
    assert_eq!(leader(&world), Leadership::Led(writer.token));
}

#[test]
fn readers_do_not_lead_and_do_not_stand_in_the_way_of_a_leader() {
    let mut world = World::new();
    world.take(by(1).read("x"));
    assert_eq!(leader(&world), Leadership::Readers);
    let counted = world.take(by(2).bare("x"));
    assert_eq!(leader(&world), Leadership::Led(counted.token));
    world.die(2);
    let upgraded = world.take(by(1).write("x"));
    assert_eq!(leader(&world), Leadership::Led(upgraded.token));
}

#[test]
fn of_several_slots_nobody_leads_even_if_only_one_is_held() {
    let mut world = World::new();
    world.take(by(1).slots("x", 3));
    assert_eq!(leader(&world), Leadership::Slots(3));
    world.die(1);
    world.resize("x", Some(View::Slots { slots: 2 }));
    assert_eq!(leader(&world), Leadership::Slots(2));
    world.resize("x", None);
    world.take(by(2).bare("x"));
    world.take(by(3).slots("x", 2));
    assert_eq!(leader(&world), Leadership::Slots(2));
}

#[test]
fn a_holder_that_asks_again_within_its_own_hold_still_leads() {
    let mut world = World::new();
    let outer = world.take(by(1).bare("x"));
    world.take(by(2).bare("x").under(world.frame(1)));
    assert_eq!(leader(&world), Leadership::Led(outer.token));
}

#[test]
fn a_grant_that_nobody_was_told_yet_does_not_lead() {
    let mut world = World::new();
    let mut wish = by(1).bare("x");
    wish.provisional = true;
    let (request, _) = world.ask(wish);
    assert_eq!(leader(&world), Leadership::Vacant);
    world.apply(Change::Confirm { request });
    assert!(matches!(leader(&world), Leadership::Led(_)));
}
