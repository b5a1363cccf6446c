//! The flaws of `locks`, and the right behaviour.

use std::collections::BTreeSet;

use crate::tests::admission::locks::{file, text};
use crate::tests::world::{Wish, World, by, grants, owner};
use crate::*;

/// Flaws of the original that concern one node, each with a test of the right behaviour.
const FLAWS: [(&str, fn()); 13] = [
    ("q_same_lock_twice", a_held_lock_is_granted_again_at_once),
    ("q_same_lock_twice_read", a_held_lock_is_granted_again_at_once),
    ("q_same_lock_twice_then_new", a_held_lock_is_granted_again_at_once),
    ("h_depth5_parent_blocks_child", keys_exclude_at_every_depth),
    ("h_depth5_child_blocks_parent", keys_exclude_at_every_depth),
    ("h_underscore_atom_in_oid", no_component_matches_another),
    ("u_both_readers_first_requester_wins", of_two_upgraders_the_youngest_is_refused),
    ("u_upgrade_abort_flag", of_two_upgraders_the_youngest_is_refused),
    ("u_three_readers_two_upgrade", an_upgrade_is_not_lost_when_another_is_refused),
    ("u_write_then_read_keeps_write", a_read_after_a_write_keeps_the_write),
    ("d4_ring_youngest_middle", every_recorded_deadlock_resolves),
    ("d2_waiter_behind", a_waiter_behind_the_refused_request_finally_holds_alone),
    ("e_await_without_requests", a_request_for_nothing_is_refused_at_once),
];

/// Flaws without a counterpart, and why.
const SKIPPED_FLAWS: [(&str, &str); 6] = [
    ("e_lock_objects_drops_require", "a lock on several nodes is a later issue's"),
    ("e_surrender_nowait", "nobody surrenders to somebody: the victim is refused"),
    ("m_majority_alive_all_dead", "a lock on several nodes is a later issue's"),
    ("m_all_alive_all_dead", "a lock on several nodes is a later issue's"),
    ("m_await_nodes_lost_and_reclaimed", "a lock on several nodes is a later issue's"),
    ("m_await_flag_late", "a lock on several nodes is a later issue's"),
];

#[test]
fn every_flaw_has_a_test_or_a_reason_why_not() {
    let listed: BTreeSet<&str> =
        FLAWS.iter().map(|flaw| flaw.0).chain(SKIPPED_FLAWS.iter().map(|flaw| flaw.0)).collect();
    let file = file();
    let flaws = file["flaws"].as_array().unwrap();
    assert_eq!(flaws.iter().map(|flaw| text(flaw, "name")).collect::<BTreeSet<_>>(), listed);
    assert_eq!(listed.len(), FLAWS.len() + SKIPPED_FLAWS.len());
}

#[test]
fn a_held_lock_is_granted_again_at_once() {
    let ask = |world: &mut World, wish: Wish| world.take(wish).items.len();
    for others_wait in [false, true] {
        let mut world = World::new();
        world.take(by(1).write("x"));
        world.take(by(1).read("y"));
        if others_wait {
            world.wait(by(2).write("x"));
            world.wait(by(3).write("y"));
        }
        assert_eq!(ask(&mut world, by(1).write("x")), 1);
        assert_eq!(ask(&mut world, by(1).read("y")), 1);
        assert_eq!(ask(&mut world, by(1).write("x/1").read("y/1")), 2);
        // A key that is taken twice is released twice.
        world.release(1, "x");
        assert!(matches!(world.refused(by(4).read("x").now()), Refusal::Full { item: 0 }));
    }
}

#[test]
fn keys_exclude_at_every_depth() {
    let names: Vec<String> = (1..=12).map(|depth| vec!["k"; depth].join("/")).collect();
    for held in &names {
        for asked in &names {
            let mut world = World::new();
            world.take(by(1).write(held));
            world.refused(by(2).read(asked).now());
            world.refused(by(2).bare(asked).now());
            world.take(by(2).write(&format!("{held}-")));
            let waits = world.wait(by(2).write(asked));
            assert_eq!(world.die(1), [waits]);
        }
    }
}

#[test]
fn no_component_matches_another() {
    for odd in ["_", "*", "?", "%", ".", "..", "[a-z]", "$1", "\\"] {
        let mut world = World::new();
        world.take(by(1).write(&format!("p/{odd}")));
        world.take(by(2).write("p/x"));
        world.take(by(3).write(&format!("q/x/{odd}")));
        world.take(by(4).write("q/x/y"));
        world.refused(by(5).read(&format!("p/{odd}")).now());
    }
}

#[test]
fn of_two_upgraders_the_youngest_is_refused() {
    for (first, second) in [(1, 2), (2, 1)] {
        let mut world = World::new();
        world.take(by(1).read("x"));
        world.take(by(2).read("x"));
        let waits = world.wait(by(first).write("x"));
        let (request, outcomes) = world.ask(by(second).write("x"));
        let (old, young) = if first == 1 { (waits, request) } else { (request, waits) };
        let refused = outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Refused { request, why: Refusal::Deadlock { .. } } => Some(*request),
            _ => None,
        });
        assert_eq!(refused, Some(young));
        // It still reads, and the other has kept its place.
        assert!(world.table.waiter(old).is_some());
        assert_eq!(grants(&world.release(2, "x")), [old]);
    }
}

#[test]
fn an_upgrade_is_not_lost_when_another_is_refused() {
    let mut world = World::new();
    for pid in 1..=3 {
        world.take(by(pid).read("x"));
    }
    let oldest = world.wait(by(1).write("x"));
    assert!(matches!(world.refused(by(2).write("x")), Refusal::Deadlock { .. }));
    assert_eq!(world.die(2), []);
    assert_eq!(world.die(3), [oldest]);
}

#[test]
fn a_read_after_a_write_keeps_the_write() {
    let mut world = World::new();
    world.take(by(1).write("x"));
    world.take(by(1).read("x"));
    world.refused(by(2).read("x").now());
    // The read ends first, because it is the latest hold of the key.
    world.release(1, "x");
    world.refused(by(2).read("x").now());
    world.release(1, "x");
    world.take(by(2).read("x"));
}

#[test]
fn every_recorded_deadlock_resolves() {
    let file = file();
    for ring in file["rings"].as_array().unwrap() {
        let waits_for: Vec<u32> = ring["waits_for_ring"]
            .as_array()
            .unwrap()
            .iter()
            .map(|agent| u32::try_from(agent.as_u64().unwrap()).unwrap())
            .collect();
        let mut world = World::new();
        let size = u32::try_from(waits_for.len()).unwrap();
        for pid in 1..=size {
            world.take(by(pid).write(&format!("o{pid}")));
        }
        let next = |at: usize| waits_for[(at + 1) % waits_for.len()];
        for (at, pid) in waits_for.iter().enumerate() {
            world.ask(by(*pid).write(&format!("o{}", next(at))));
        }
        let youngest = world.frame(size);
        assert_eq!(world.table.waiters_in(youngest).count(), 0, "{ring}");
        assert_eq!(world.table.waiters().len(), waits_for.len() - 1, "{ring}");
        // In both, the same session gets the locks of the youngest one.
        let granted = world.die(size);
        let at = waits_for.iter().position(|pid| *pid == size).unwrap();
        let before = waits_for[(at + waits_for.len() - 1) % waits_for.len()];
        let winner = world.table.hold_of(granted[0]).unwrap().asked.owner.clone();
        assert_eq!((granted.len(), winner), (1, owner(before)), "{ring}");
        if let Some(recorded) = ring["observed"]["granted_to"].as_u64() {
            assert_eq!(u64::from(before), recorded, "{ring}");
        }
    }
}

#[test]
fn a_waiter_behind_the_refused_request_finally_holds_alone() {
    let mut world = World::new();
    world.take(by(1).write("a"));
    world.take(by(2).write("b"));
    let first = world.wait(by(1).write("b"));
    let second = world.wait(by(3).write("b"));
    assert!(matches!(world.refused(by(2).write("a")), Refusal::Deadlock { .. }));
    assert_eq!(world.die(2), [first]);
    assert!(world.table.waiter(second).is_some());
    assert_eq!(world.die(1), [second]);
}

#[test]
fn a_request_for_nothing_is_refused_at_once() {
    let mut world = World::new();
    assert_eq!(world.refused(by(1)), Refusal::Invalid { item: 0 });
}
