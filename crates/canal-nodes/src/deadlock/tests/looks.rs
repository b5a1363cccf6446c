//! Clients look for deadlocks, each at its own times, over nodes that answer late or never.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::random::{history, step};
use super::rings::Ring;
use super::world::{State, World};
use crate::Millis;
use crate::deadlock::{Detector, Named, Next, Way, find_in};
use crate::sim::{Rule, break_rule};
use canal_protocol::WaitsFound;

/// The step of time.
const TICK_MS: Millis = 20;

/// The longest delay of an answer, on each of its two ways.
const LATE_MS: Millis = 300;

/// Clients, their detectors and the messages in transit.
struct Scene {
    world: World,
    rng: Rng,
    now: Millis,
    detectors: BTreeMap<usize, Detector>,
    /// The earliest time at which each client begins to look.
    begins: BTreeMap<usize, Millis>,
    /// The events to come, in the order of time.
    coming: BTreeMap<(Millis, u64), Coming>,
    count: u64,
    /// A node that no client reaches.
    away: Option<usize>,
    /// Whether a client knows only the nodes that it and its enclosing requests asked.
    are_strangers: bool,
    /// The nodes that each client reads, in the order of its detector.
    reads: BTreeMap<usize, Vec<usize>>,
    /// Per node: the nodes that its readers read.
    named: Vec<BTreeSet<usize>>,
    /// The clients that gave way, in this order.
    gave_way: Vec<usize>,
    /// How many of them gave way although they were not stuck.
    needless: usize,
}

enum Coming {
    /// A call arrives at a node.
    Call { client: usize, round: u64, node: usize },
    /// Its answer arrives, with the nodes that others read.
    Answer {
        client: usize,
        round: u64,
        node: usize,
        reading: Option<Box<WaitsFound>>,
        named: BTreeSet<usize>,
    },
}

impl Scene {
    fn new(world: World, rng: Rng) -> Self {
        let named = vec![BTreeSet::new(); world.tables.len()];
        Self {
            are_strangers: false,
            reads: BTreeMap::new(),
            named,
            world,
            rng,
            now: 0,
            detectors: BTreeMap::new(),
            begins: BTreeMap::new(),
            coming: BTreeMap::new(),
            count: 0,
            away: None,
            gave_way: Vec::new(),
            needless: 0,
        }
    }

    fn send(&mut self, coming: Coming) {
        self.count += 1;
        let at = self.now + self.rng.u64(1..=LATE_MS);
        self.coming.insert((at, self.count), coming);
    }

    fn pass(&mut self, ms: Millis) {
        let until = self.now + ms;
        while self.now < until {
            self.now += TICK_MS;
            self.receive();
            self.look();
        }
    }

    fn receive(&mut self) {
        while let Some(first) = self.coming.first_entry() {
            if first.key().0 > self.now {
                return;
            }
            match first.remove() {
                Coming::Call { client, round, node } => {
                    let is_away = self.away == Some(node);
                    let reading = (!is_away).then(|| Box::new(self.world.reading(node)));
                    let named = self.named[node].clone();
                    self.named[node].extend(&self.reads[&client]);
                    self.send(Coming::Answer { client, round, node, reading, named });
                }
                Coming::Answer { client, round, node, reading, named } => {
                    let Some(detector) = self.detectors.get_mut(&client) else { continue };
                    let reads = self.reads.get_mut(&client).unwrap();
                    for other in named {
                        if !reads.contains(&other) {
                            reads.push(other);
                            detector.add_node();
                        }
                    }
                    let at = reads.iter().position(|it| *it == node).unwrap();
                    detector.answer(round, at, reading.map(|it| *it));
                }
            }
        }
    }

    fn look(&mut self) {
        let waiting: Vec<usize> = self.world.waiters().into_iter().collect();
        self.detectors.retain(|id, _| waiting.contains(id));
        for id in waiting {
            let begins = self.begins.get(&id).copied().unwrap_or_default();
            if self.world.is_over_nodes(id) && self.now >= begins {
                self.look_for(id);
            }
        }
    }

    fn look_for(&mut self, id: usize) {
        // An earlier client may have given way in this step and let it continue.
        if self.world.asks[id].state != State::Waits {
            return;
        }
        let own = self.world.name_of(id);
        let reads = self.reads.entry(id).or_insert_with(|| match self.are_strangers {
            true => self.world.nodes_around(id).into_iter().collect(),
            false => (0..self.world.tables.len()).collect(),
        });
        let begin = || Detector::new(Named::default(), reads.len());
        let detector = self.detectors.entry(id).or_insert_with(begin);
        detector.is(own);
        detector.waits(true, self.now);
        match detector.next(self.now) {
            Next::Rest(_) => {}
            Next::Ask(round, _) => {
                let nodes = reads.clone();
                let calls = nodes.into_iter().map(|node| Coming::Call { client: id, round, node });
                calls.for_each(|call| self.send(call));
            }
            Next::GiveWay { way, .. } => self.give_way(id, way),
        }
    }

    fn give_way(&mut self, id: usize, way: Way) {
        let own = self.world.name_of(id);
        let deadlocks = find_in(&self.world.readings()).unwrap();
        let mut victims = deadlocks.iter().flat_map(|deadlock| &deadlock.victims);
        self.needless += usize::from(!victims.any(|victim| victim.request == own));
        self.gave_way.push(id);
        match way {
            Way::Surrender => self.world.surrender(id),
            Way::Refusal => self.world.finish(id),
        }
    }
}

/// A ring of a seed: which client gave way, whose turn it was, whether it was stuck, and whether
/// one is still stuck.
fn ring(seed: u64, away: bool, are_strangers: bool) -> (Scene, usize, bool) {
    let mut rng = Rng::with_seed(seed);
    let (nodes, length) = (rng.usize(2..=3), rng.usize(3..=5));
    let mut ages: Vec<usize> = (0..length).collect();
    rng.shuffle(&mut ages);
    let plain = rng.u8(..);
    let Ring { world, inner, .. } = Ring::new(nodes, length, &ages, |at| plain >> at & 1 == 1);
    let youngest = inner[*ages.last().unwrap()];
    let begins = inner.iter().map(|id| (*id, rng.u64(0..6_000))).collect();
    let away = away.then_some(0);
    let mut scene = Scene { begins, away, are_strangers, ..Scene::new(world, rng) };
    scene.pass(90_000);
    let is_stuck = !find_in(&scene.world.readings()).unwrap().is_empty();
    (scene, youngest, is_stuck)
}

#[test]
fn of_a_ring_only_the_youngest_gives_way_whoever_looks_when() {
    for seed in 0..60 {
        let (scene, youngest, is_stuck) = ring(seed, false, false);
        assert_eq!((scene.gave_way, scene.needless), (vec![youngest], 0), "seed {seed}");
        assert!(!is_stuck, "seed {seed}");
    }
}

#[test]
fn a_ring_of_which_a_part_cannot_be_seen_is_none() {
    for seed in 0..20 {
        let (scene, _, is_stuck) = ring(seed, true, false);
        assert!(scene.gave_way.is_empty(), "seed {seed}: {:?}", scene.gave_way);
        assert!(is_stuck);
    }
}

/// Clients that know only their own nodes learn of the others from readers of the same node.
#[test]
fn a_ring_over_nodes_that_no_client_knows_all_of_is_found() {
    for seed in 0..60 {
        let (scene, _, is_stuck) = ring(seed, false, true);
        assert_eq!((scene.gave_way.len(), scene.needless), (1, 0), "seed {seed}");
        assert!(!is_stuck, "seed {seed}");
    }
}

#[test]
fn rule_7_that_it_reads_its_own_nodes_only_is_found() {
    break_rule(Some(Rule::ReadsWhereOthersRead));
    let stuck = (0..2_000).find(|seed| ring(*seed, false, true).2);
    break_rule(None);
    assert!(stuck.is_some(), "it was not found");
}

/// If the youngest cannot see the ring, the next one gives way, later.
#[test]
fn the_next_one_gives_way_if_the_youngest_does_not() {
    let Ring { world, inner, .. } = Ring::new(2, 2, &[0, 1], |_| false);
    let begins = BTreeMap::from([(inner[1], Millis::MAX)]);
    let mut scene = Scene { begins, ..Scene::new(world, Rng::with_seed(1)) };
    scene.pass(10_000);
    assert!(scene.gave_way.is_empty());
    scene.pass(10_000);
    assert_eq!((scene.gave_way, scene.needless), (vec![inner[0]], 0));
}

#[test]
fn rule_7_that_nobody_looks_is_found() {
    break_rule(Some(Rule::LooksForDeadlocks));
    let (scene, _, is_stuck) = ring(1, false, false);
    break_rule(None);
    assert!(is_stuck && scene.gave_way.is_empty());
}

#[test]
fn rule_7_that_each_of_a_ring_gives_way_is_found() {
    break_rule(Some(Rule::OneGivesWay));
    let several = (0..60).any(|seed| ring(seed, false, false).0.gave_way.len() > 1);
    break_rule(None);
    assert!(several, "it was not found");
}

/// Random histories that continue while clients look: in the end no client is stuck, and hardly any
/// gave way without need.
#[test]
fn whatever_happens_while_clients_look_nothing_stays_stuck() {
    let (mut gave_way, mut needless) = (0, 0);
    for seed in 0..60 {
        let (world, rng) = history(seed);
        let mut scene = Scene::new(world, rng);
        for _ in 0..6 {
            step(&mut scene.world, &mut scene.rng);
            scene.pass(1_000);
        }
        scene.pass(120_000);
        let left = find_in(&scene.world.readings()).unwrap();
        assert_eq!(left, [], "seed {seed}: {}", scene.world.told());
        gave_way += scene.gave_way.len();
        needless += scene.needless;
    }
    assert!(gave_way > 10, "{gave_way}");
    // Another client that gives way may let one continue that waits at several nodes for any of
    // them.
    assert!(needless * 20 <= gave_way, "{needless} of {gave_way}");
}
