//! Compares random histories of several nodes with brute force: the test drives the tables
//! themselves to see which requests can still continue.

use std::collections::BTreeSet;

use fastrand::Rng;

use super::world::{State, World};
use crate::deadlock::union::Union;
use crate::deadlock::{find, find_in};
use canal_core::Require;
use canal_protocol::WaitsFound;

/// How many histories to run; `CANAL_HISTORIES` sets another number. Ten thousand take a few
/// minutes.
const HISTORIES: u64 = 300;

fn histories() -> u64 {
    std::env::var("CANAL_HISTORIES").map_or(HISTORIES, |number| number.parse().unwrap())
}

const WANTED: [&str; 8] = ["w a", "r a", "w a/b", "c a/b", "w b", "r b", "c c", "c2 c"];

/// One event: a client asks, or a command ends.
pub(super) fn step(world: &mut World, rng: &mut Rng) {
    let running = |id: &usize| world.asks[*id].state == State::Runs;
    let runs: Vec<usize> = (0..world.asks.len()).filter(running).collect();
    let under = if rng.u8(..10) < 6 { rng.choice(&runs).copied() } else { None };
    let wanted = WANTED[rng.usize(..WANTED.len())];
    match rng.u8(..10) {
        0..2 => {
            if let Some(id) = rng.choice(world.able_to_end()) {
                world.finish(id);
            }
        }
        2..6 => {
            let node = rng.usize(..world.tables.len());
            world.plain(node, wanted, under);
        }
        _ => {
            let mut nodes: Vec<usize> = (0..world.tables.len()).collect();
            rng.shuffle(&mut nodes);
            nodes.truncate(rng.usize(1..=nodes.len()));
            nodes.sort_unstable();
            let require = [Require::All, Require::All, Require::Majority, Require::Any];
            world.over(&nodes, require[rng.usize(..4)], wanted, under);
        }
    }
}

pub(super) fn history(seed: u64) -> (World, Rng) {
    let mut rng = Rng::with_seed(seed);
    let mut world = World::of(rng.usize(2..=4));
    for _ in 0..rng.usize(4..24) {
        step(&mut world, &mut rng);
    }
    (world, rng)
}

/// The requests that remain when everything that can continue has done so.
fn remaining(world: &World) -> BTreeSet<usize> {
    remaining_of(world, &world.readings())
}

fn remaining_of(world: &World, readings: &[WaitsFound]) -> BTreeSet<usize> {
    let mut union = Union::of(readings).unwrap();
    union.reduce();
    union.requests().map(|name| world.ask_of(name)).collect()
}

/// The same by brute force: a command ends as soon as no request waits in it.
fn never_granted(world: &World) -> (BTreeSet<usize>, usize) {
    let mut world = world.clone();
    let (asked, refused) = (world.asks.len(), world.refused);
    world.is_optimistic = true;
    while let Some(id) = world.able_to_end().first().copied() {
        world.finish(id);
    }
    (world.waiters().into_iter().filter(|id| *id < asked).collect(), world.refused - refused)
}

#[test]
fn what_remains_is_what_brute_force_leaves() {
    let (mut stuck, mut doubtful) = (0, 0);
    // In seed 2042 a request overtakes the waiters of its own session, because that session holds
    // something else.
    for seed in (0..histories()).chain([2042]) {
        let (world, _) = history(seed);
        let (left, refused) = never_granted(&world);
        if refused > 0 {
            // While commands end, a table found a deadlock of its own: the order decides which
            // request it refuses.
            doubtful += 1;
            continue;
        }
        let remaining = remaining(&world);
        let over_nodes = |of: &BTreeSet<usize>| -> BTreeSet<usize> {
            of.iter().copied().filter(|id| world.is_over_nodes(*id)).collect()
        };
        // Of requests that only one node knows, a reading contains just those near the others.
        assert_eq!(over_nodes(&remaining), over_nodes(&left), "seed {seed}: {}", world.told());
        assert!(remaining.is_subset(&left), "seed {seed}: {}", world.told());
        stuck += usize::from(!left.is_empty());
    }
    assert!(stuck as u64 > histories() / 50, "only {stuck} histories have a deadlock");
    assert!(doubtful < histories() / 10, "{doubtful} of {} were not compared", histories());
}

/// Whatever the order in which commands end, a request reported in a deadlock is not granted.
#[test]
fn a_request_in_a_deadlock_is_never_granted_whatever_ends_when() {
    let mut found = 0;
    for seed in 0..histories() / 4 {
        let (world, mut rng) = history(seed);
        let deadlocks = find_in(&world.readings()).unwrap();
        let stuck: Vec<usize> = deadlocks
            .iter()
            .flat_map(|deadlock| deadlock.ring.iter().map(|step| step.request))
            .map(|name| world.ask_of(name))
            .collect();
        found += stuck.len();
        for _ in 0..4 {
            let mut later = world.clone();
            while let Some(id) = rng.choice(later.able_to_end()) {
                later.finish(id);
            }
            if later.refused == world.refused {
                for id in &stuck {
                    assert_eq!(
                        later.asks[*id].state,
                        State::Waits,
                        "seed {seed}: {id}: {}",
                        world.told()
                    );
                }
            }
        }
    }
    assert!(found > 0);
}

/// One request gives way after the other, in the reported order, and in the end none is stuck.
#[test]
fn when_the_victims_give_way_everything_goes_on() {
    let mut refusals = 0;
    for seed in 0..histories() {
        let (mut world, _) = history(seed);
        for _ in 0..world.asks.len() {
            let deadlocks = find_in(&world.readings()).unwrap();
            let Some(deadlock) = deadlocks.first() else { break };
            let Some(victim) = deadlock.victim(1) else {
                panic!("seed {seed}: nobody can give way: {deadlock:?} {}", world.told());
            };
            refusals += 1;
            world.finish(world.ask_of(victim.request));
        }
        assert_eq!(find_in(&world.readings()).unwrap(), [], "seed {seed}");
        assert_eq!(remaining(&world), BTreeSet::new(), "seed {seed}: stuck without a ring");
    }
    assert!(refusals > 0);
}

/// Readings of different nodes at different times, while everything continues between them. Every
/// reported deadlock existed at the moment between the two readings.
#[test]
fn no_two_readings_show_a_deadlock_that_is_none() {
    let (mut claimed, mut claims) = (0, 0);
    for seed in 0..histories() {
        let (mut world, mut rng) = history(seed);
        let mut read = |world: &mut World| {
            let mut readings = Vec::new();
            for at in 0..world.tables.len() {
                readings.push(world.reading(at));
                if rng.bool() {
                    step(world, &mut rng);
                }
            }
            readings
        };
        let first = read(&mut world);
        let between = world.clone();
        let second = read(&mut world);
        let deadlocks = find(&first, &second).unwrap();
        let truth = remaining(&between);
        for name in deadlocks.iter().flat_map(|it| &it.ring).map(|step| step.request) {
            let id = between.ask_of(name);
            assert!(truth.contains(&id), "seed {seed}: {id} was not stuck: {}", between.told());
            claims += 1;
        }
        claimed += usize::from(!deadlocks.is_empty());
    }
    assert!(claims > 0 && claimed > 0);
}
