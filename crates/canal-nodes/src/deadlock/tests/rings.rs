//! Single deadlocks, and states that only resemble one.

use fastrand::Rng;

use super::world::{State, World};
use crate::deadlock::{Deadlock, RequestName, Way, find, find_in};
use canal_core::{By, Change, Key, Require, Setting, View};
use canal_protocol::WaitsFound;

fn key(number: usize) -> String {
    format!("k{number}")
}

fn found(world: &World) -> Vec<Deadlock> {
    find_in(&world.readings()).unwrap()
}

/// A ring of `length` commands. The `i`-th one holds `k<i>` at one node and waits for the next key
/// at the next node. `ages` gives the order in which the commands begin.
pub(super) struct Ring {
    pub(super) world: World,
    outer: Vec<usize>,
    pub(super) inner: Vec<usize>,
}

impl Ring {
    pub(super) fn new(
        nodes: usize,
        length: usize,
        ages: &[usize],
        plain: impl Fn(usize) -> bool,
    ) -> Self {
        let mut world = World::of(nodes);
        let mut outer = vec![0; length];
        for at in ages {
            outer[*at] = world.over(&[at % nodes], Require::All, &format!("w {}", key(*at)), None);
        }
        let inner = (0..length).map(|at| {
            let next = (at + 1) % length;
            let (node, wanted) = (next % nodes, format!("w {}", key(next)));
            match plain(at) {
                true => world.plain(node, &wanted, Some(outer[at])),
                false => world.over(&[node], Require::All, &wanted, Some(outer[at])),
            }
        });
        let inner = inner.collect();
        Self { world, outer, inner }
    }

    /// The only victim is the youngest command's request, and without it everything continues.
    #[track_caller]
    fn check(mut self, youngest: usize) {
        let deadlocks = found(&self.world);
        let [deadlock] = &deadlocks[..] else { panic!("{deadlocks:?}") };
        assert_eq!(deadlock.ring.len(), self.inner.len());
        let victim = deadlock.victim(1).unwrap();
        let ids: Vec<usize> =
            deadlock.ring.iter().map(|it| self.world.ask_of(it.request)).collect();
        assert_eq!(self.world.ask_of(victim.request), self.inner[youngest]);
        assert_eq!((ids[0], victim.way), (self.inner[youngest], Way::Refusal));
        let last = deadlock.ring.last().unwrap();
        assert!(matches!(last.by, By::Hold(..)), "{last:?}");
        assert_eq!(deadlock.victims.len(), self.inner.len(), "all of them could give way");
        self.world.finish(self.inner[youngest]);
        assert_eq!(found(&self.world), []);
        self.world.finish(self.outer[youngest]);
        while let Some(id) = self.world.able_to_end().first().copied() {
            self.world.finish(id);
        }
        assert!(self.world.waiters().is_empty(), "everything goes on");
    }
}

/// All orders of the numbers below `length`.
fn orders(length: usize) -> Vec<Vec<usize>> {
    if length == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(length - 1);
    let with = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, length - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..length).map(move |at| with(order, at))).collect()
}

#[test]
fn in_a_ring_the_youngest_gives_way_whatever_the_order_of_age() {
    // `CANAL_RINGS=all` also tries every order of 7 and 8.
    let all = std::env::var_os("CANAL_RINGS").is_some();
    let mut rng = Rng::with_seed(7);
    for length in 2..=8 {
        let mut orders = orders(length);
        if !all && orders.len() > 24 {
            rng.shuffle(&mut orders);
            orders.truncate(24);
        }
        for ages in orders {
            let nodes = rng.usize(2..=6);
            let plain = rng.u8(..);
            let youngest = *ages.last().unwrap();
            Ring::new(nodes, length, &ages, |at| plain >> at & 1 == 1).check(youngest);
        }
    }
}

#[test]
fn every_order_of_age_of_up_to_five_over_two_to_six_nodes() {
    for nodes in 2..=6 {
        for length in 2..=5 {
            for ages in orders(length) {
                let youngest = *ages.last().unwrap();
                Ring::new(nodes, length, &ages, |at| at % 2 == 1).check(youngest);
            }
        }
    }
}

#[test]
fn a_chain_is_no_ring() {
    for length in 2..=8 {
        let mut world = World::of(3);
        let outer: Vec<usize> = (0..length)
            .map(|at| world.over(&[at % 3], Require::All, &format!("w {}", key(at)), None))
            .collect();
        for (at, under) in (1..length).zip(outer) {
            world.plain(at % 3, &format!("w {}", key(at)), Some(under));
        }
        assert_eq!(found(&world), [], "{length}");
    }
}

#[test]
fn what_reads_together_waits_for_nobody_and_a_writer_between_closes_the_ring() {
    let mut world = World::of(2);
    let one = world.over(&[0], Require::All, "r x", None);
    let two = world.over(&[1], Require::All, "r y", None);
    world.plain(1, "r y/below", Some(one));
    assert_eq!(found(&world), []);
    world.plain(1, "w y", Some(one));
    assert_eq!(found(&world), []);
    world.plain(0, "w x", Some(two));
    assert_eq!(found(&world).len(), 1);
}

/// A node lets no request overtake a waiter if it does not know that this waiter waits for the same
/// session at another node.
#[test]
fn a_turn_that_must_be_waited_for_closes_a_ring() {
    let mut world = World::of(2);
    let one = world.over(&[0], Require::All, "w x", None);
    let reader = world.over(&[1], Require::All, "r y", None);
    let writer = world.plain(1, "w y", None);
    // The reader waits for `one`, the writer for the reader, and `one` for its turn behind the
    // writer.
    let inner = world.plain(1, "r y", Some(one));
    world.plain(0, "r x", Some(reader));
    let deadlocks = found(&world);
    let [deadlock] = &deadlocks[..] else { panic!("{deadlocks:?}") };
    let before = deadlock.ring.iter().filter(|step| matches!(step.by, By::Waiter(..)));
    assert_eq!(before.count(), 1, "{deadlock:?}");
    let in_ring: Vec<usize> = deadlock.ring.iter().map(|it| world.ask_of(it.request)).collect();
    assert!(in_ring.contains(&writer) && in_ring.contains(&inner), "{in_ring:?}");
    // The writer's client does not look over nodes.
    assert!(deadlock.victims.iter().all(|it| world.ask_of(it.request) != writer));
}

/// A node that knows of the wait lets the request overtake, and so there is no ring.
#[test]
fn a_turn_that_the_node_itself_passes_over_closes_none() {
    let mut world = World::of(2);
    let one = world.over(&[0, 1], Require::All, "w x", None);
    let writer = world.over(&[1], Require::All, "w x/z w y", None);
    assert_eq!(world.asks[writer].state, State::Waits);
    let inner = world.over(&[1], Require::All, "r y", Some(one));
    assert_eq!(world.asks[inner].state, State::Runs, "it passes the writer");
    assert_eq!(found(&world), []);
}

#[test]
fn one_that_waits_for_its_own_run_is_in_a_deadlock_with_itself() {
    let mut world = World::of(2);
    let run = world.over(&[0, 1], Require::All, "w x", None);
    let inner = world.plain(1, "w x", Some(run));
    let deadlocks = found(&world);
    let [deadlock] = &deadlocks[..] else { panic!("{deadlocks:?}") };
    assert_eq!(deadlock.ring.len(), 1);
    assert_eq!(world.ask_of(deadlock.victim(1).unwrap().request), inner);
}

/// The request that has not begun releases everything that it has collected, and no request is
/// refused.
#[test]
fn a_request_that_only_collects_surrenders() {
    let mut world = World::of(2);
    let first = world.over(&[1], Require::All, "w y", None);
    let collects = world.over(&[0, 1], Require::All, "w x w y", None);
    world.plain(0, "w x", Some(first));
    let deadlocks = found(&world);
    let [deadlock] = &deadlocks[..] else { panic!("{deadlocks:?}") };
    let victim = deadlock.victim(1).unwrap();
    assert_eq!((world.ask_of(victim.request), victim.way), (collects, Way::Surrender));
    world.surrender(collects);
    assert_eq!(found(&world), []);
    while let Some(id) = world.able_to_end().first().copied() {
        world.finish(id);
    }
    assert!(world.waiters().is_empty());
}

#[test]
fn any_is_stuck_only_where_it_is_stuck_at_every_node() {
    let mut world = World::of(3);
    let one = world.over(&[0], Require::All, "w x", None);
    let two = world.over(&[1], Require::All, "w y", None);
    let free = world.over(&[2], Require::All, "w y", None);
    world.plain(0, "w x", Some(two));
    let any = world.over(&[1, 2], Require::Any, "w y", Some(one));
    assert_eq!(found(&world), [], "the third node will grant it");
    let third = world.plain(0, "w x", Some(free));
    let deadlocks = found(&world);
    assert_eq!(deadlocks.len(), 1, "{deadlocks:?}");
    let stuck = |id| deadlocks[0].victims.iter().any(|it| world.ask_of(it.request) == id);
    assert!(stuck(any) && stuck(third), "{deadlocks:?}");
    // A node out of reach may grant it.
    let readings: Vec<_> = world.readings().into_iter().take(2).collect();
    assert_eq!(find_in(&readings).unwrap(), []);
}

#[test]
fn slots_are_counted() {
    let mut world = World::of(2);
    let one = world.over(&[0], Require::All, "c2 x", None);
    let two = world.over(&[1], Require::All, "c y", None);
    let third = world.over(&[0], Require::All, "c2 x", None);
    world.plain(1, "c y", Some(one));
    world.plain(0, "c2 x", Some(two));
    assert_eq!(found(&world), [], "the third one gives a slot back");
    world.plain(1, "c y", Some(third));
    assert_eq!(found(&world).len(), 1);
}

#[test]
fn what_is_in_one_reading_only_counts_as_going_on() {
    let ring = || Ring::new(2, 2, &[0, 1], |_| true).world;
    let world = ring();
    let readings = world.readings();
    assert_eq!(find(&readings, &readings).unwrap().len(), 1);
    // A node failed to answer once.
    assert_eq!(find(&readings[..1], &readings).unwrap(), []);
    assert_eq!(find(&readings, &readings[1..]).unwrap(), []);
    // A request arrived in between.
    let mut earlier = readings.clone();
    earlier[0].table.waiters.clear();
    assert_eq!(find(&earlier, &readings).unwrap(), []);
    // A hold began in between.
    let mut earlier = readings.clone();
    earlier[1].table.holds.clear();
    assert_eq!(find(&earlier, &readings).unwrap(), []);
    // A size was stored in between.
    let mut later = world.clone();
    let setting = Setting::View(Some(View::Slots { slots: 9 }));
    later.apply(1, Change::Set { key: Key::new("k1").unwrap(), setting });
    assert_eq!(find(&readings, &later.readings()).unwrap(), []);
}

#[test]
fn a_spare_that_is_not_confirmed_blocks_nobody() {
    let Ring { world, .. } = Ring::new(2, 2, &[0, 1], |_| true);
    let mut readings = world.readings();
    assert_eq!(find_in(&readings).unwrap().len(), 1);
    for frame in &mut readings[0].frames {
        if let Some(part) = &mut frame.part_of {
            part.loose = true;
        }
    }
    assert_eq!(find_in(&readings).unwrap(), []);
}

/// A client may claim to be under any run, and harms only requests of its own user by that.
#[test]
fn a_claim_to_be_under_the_run_of_another_user_is_ignored() {
    let Ring { world, .. } = Ring::new(2, 2, &[0, 1], |_| true);
    let mut readings = world.readings();
    for reading in &mut readings {
        for frame in &mut reading.table.frames {
            let mut runs = reading.frames.iter().filter(|it| it.part_of.is_some());
            let is_plain = runs.all(|it| it.frame != frame.id);
            frame.uid = if is_plain { 1 } else { 2 };
        }
    }
    // The first one claims to be under a run that this node does not know; only the node of the run
    // knows its user.
    assert_eq!(find_in(&readings).unwrap().len(), 1);
    let mut world = World::of(1);
    let run = world.over(&[0], Require::All, "w x", None);
    world.plain(0, "w x", Some(run));
    let mut readings = world.readings();
    assert_eq!(find_in(&readings).unwrap().len(), 1);
    let WaitsFound { table, frames, .. } = &mut readings[0];
    for frame in &mut table.frames {
        let mut runs = frames.iter().filter(|it| it.part_of.is_some());
        let is_plain = runs.all(|it| it.frame != frame.id);
        frame.uid = if is_plain { 1 } else { 2 };
    }
    assert_eq!(find_in(&readings).unwrap(), []);
}

/// Two separate rings are two deadlocks, each with a victim.
#[test]
fn two_rings_are_two_deadlocks() {
    let mut world = World::of(2);
    for (one, two) in [("a", "b"), ("c", "d")] {
        let first = world.over(&[0], Require::All, &format!("w {one}"), None);
        let second = world.over(&[1], Require::All, &format!("w {two}"), None);
        world.plain(1, &format!("w {two}"), Some(first));
        world.plain(0, &format!("w {one}"), Some(second));
    }
    let deadlocks = found(&world);
    assert_eq!(deadlocks.len(), 2);
    for deadlock in &deadlocks {
        let victim = deadlock.victim(1).unwrap();
        assert!(matches!(victim.request, RequestName::Plain(..)));
        assert_ne!(deadlock.victim(2).unwrap().request, victim.request, "the next youngest");
        assert_eq!(deadlock.victim(3), None);
    }
}
