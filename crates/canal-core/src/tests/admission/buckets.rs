//! Slots that are spread over buckets, and buckets that are out of service.

use crate::tests::world::{Wish, World, by, granted, grants, key};
use crate::*;

fn gpu(pid: u32) -> Wish {
    by(pid).canal("gpu", 3, 4)
}

fn slots(granted: &Granted) -> Vec<u64> {
    granted.items[0].slots.iter().collect()
}

#[test]
fn spread_requests_go_to_the_bucket_with_the_fewest_held_slots() {
    let mut world = World::new();
    let first: Vec<_> = (1..6).map(|pid| slots(&world.take(gpu(pid).spread()))).collect();
    assert_eq!(first, [[0], [3], [6], [9], [1]]);
    // A request that is not spread takes the lowest slot.
    assert_eq!(slots(&world.take(gpu(6))), [2]);
    world.die(3);
    assert_eq!(slots(&world.take(gpu(7).spread())), [6]);
    world.die(1);
    world.die(5);
    world.die(6);
    assert_eq!(slots(&world.take(gpu(8).spread())), [0], "no slot of the first bucket was held");
}

#[test]
fn a_waiter_is_spread_when_it_is_granted() {
    let mut world = World::new();
    for pid in 1..13 {
        world.take(gpu(pid));
    }
    let waiter = world.wait(gpu(13).spread());
    let frame = world.frame(8);
    let outcomes = world.apply(Change::End { frame });
    assert_eq!(slots(&granted(&outcomes, waiter).unwrap()), [7]);
}

#[test]
fn a_bucket_out_of_service_is_not_granted_and_its_holder_keeps_it() {
    let mut world = World::new();
    let gpu = |pid| by(pid).canal("gpu", 1, 4);
    for pid in 1..4 {
        world.take(gpu(pid));
    }
    world.service("gpu", &[2], true);
    let (table, gpu_key) = (&world.table, key("gpu"));
    assert_eq!(table.effective_capacity(&gpu_key), Some(3));
    let out = &table.settings(&gpu_key).without.0;
    assert_eq!((table.held_of(&gpu_key), out), (3, &[2].into()));
    assert_eq!(slots(&world.take(gpu(4))), [3], "the slot of the holder does not count");
    let waiter = world.wait(gpu(5));
    assert_eq!(world.die(3), [], "its slot leaves service with its holder");
    assert_eq!(grants(&world.service("gpu", &[2], false)), [waiter]);
    assert_eq!(world.table.hold_of(waiter).unwrap().items[0].slots.0, [SlotRange(2, 2)]);
}

#[test]
fn a_number_means_a_bucket_of_the_size_of_each_request() {
    let mut world = World::new();
    world.service("gpu", &[0], true);
    assert_eq!(slots(&world.take(gpu(1))), [3]);
    assert_eq!(slots(&world.take(by(2).canal("gpu", 1, 4))), [1]);
    assert_eq!(
        slots(&world.take(by(3).item("gpu", 2, Some(View::Buckets { per: 2, buckets: 4 })))),
        [2, 4]
    );
    let mut world = World::new();
    world.service("s", &[0], true);
    assert_eq!(slots(&world.take(by(1).slots("s", 2))), [1]);
}

#[test]
fn requests_that_no_longer_fit_are_parked_or_refused_as_with_a_smaller_size() {
    let mut world = World::new();
    let two = Some(View::Buckets { per: 1, buckets: 2 });
    world.take(by(1).item("gpu", 1, two));
    let both = world.wait(by(2).item("gpu", 2, two));
    let one = world.wait(by(3).item("gpu", 1, two));
    assert_eq!(grants(&world.service("gpu", &[0], true)), [one], "the parked one bars no one");
    assert!(world.waits(both));
    let why = Refusal::TooLarge { item: 0, capacity: 1 };
    assert_eq!(world.refused(by(4).item("gpu", 2, two)), why);
    world.service("gpu", &[0, 1], true);
    assert_eq!(
        world.refused(by(4).item("gpu", 1, two)),
        Refusal::TooLarge { item: 0, capacity: 0 }
    );
    world.service("gpu", &[0, 1], false);
    world.die(1);
    assert_eq!(world.die(3), [both]);
}

#[test]
fn an_idle_key_keeps_what_is_out_of_service() {
    let mut world = World::new();
    world.service("gpu", &[1, 7], true);
    world.take(gpu(1));
    world.die(1);
    let restored = Table::restore(&world.table.snapshot()).unwrap();
    assert_eq!(restored.settings(&key("gpu")).without.0, [1, 7].into());
    world.service("gpu", &[1, 7], false);
    assert_eq!(world.table.keys(None).count(), 0);
}
