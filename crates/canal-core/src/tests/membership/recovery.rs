//! The recovery of a table whose log may have lost entries.

use crate::tests::world::{World, by, grants, key, lease, victims};
use crate::*;

const ONE: HostId = HostId(1);
const TWO: HostId = HostId(2);
const NEW: HostId = HostId(3);

fn join(world: &mut World, host: HostId) {
    let (label, identity) = (format!("host{host}"), String::new());
    world.apply(Change::HostJoin { host, label, identity });
}

/// Two hosts: the first has `a` (token 1), the second waits for it.
fn world() -> (World, Granted, RequestId) {
    let mut world = World::new();
    join(&mut world, ONE);
    join(&mut world, TWO);
    let held = world.take(by(1).on(ONE).slots("a", 1));
    let waits = world.wait(by(2).on(TWO).slots("a", 1));
    (world, held, waits)
}

fn era(world: &mut World, may_lack: bool) -> Revision {
    let number = world.table.globals().era + 1;
    world.apply(Change::Era { number, may_lack, floor: Token(0) });
    world.table.revision()
}

fn present(told: u64) -> Change {
    of(ONE, told)
}

fn of(host: HostId, told: u64) -> Change {
    Change::Present {
        host,
        told: Token(told),
        bound: Token(told),
        lost: false,
        ttl_ms: 1_000,
        floor: Token(0),
    }
}

fn unheard(world: &World) -> Vec<HostId> {
    world.table.recovery().map_or_else(Vec::new, |it| it.unheard.iter().copied().collect())
}

#[test]
fn the_first_entry_of_a_log_recovers_nothing() {
    let mut world = World::new();
    era(&mut world, true);
    assert_eq!((world.table.recovery(), world.table.globals().era), (None, 1));
    world.take(by(1).slots("a", 1));
    era(&mut world, false);
    assert_eq!(
        world.table.recovery(),
        None,
        "there is no host to wait for, and nothing is missing"
    );
    era(&mut world, true);
    assert!(world.table.recovery().is_some());
}

#[test]
fn nothing_is_granted_before_each_host_has_spoken_or_is_gone() {
    let (mut world, held, waits) = world();
    era(&mut world, false);
    assert_eq!(unheard(&world), [ONE, TWO]);
    for wish in [by(3).slots("b", 1), by(3).slots("b", 1).now(), lease(4).write("c")] {
        assert_eq!(world.refused(wish.on(ONE)), Refusal::Recovering);
    }
    let nested = by(5).on(ONE).under(held.frame).slots("a", 1);
    assert_eq!(world.refused(nested), Refusal::Recovering, "one that shares, too");
    let mut provisional = by(6).on(ONE).read("b");
    provisional.provisional = true;
    assert_eq!(world.refused(provisional), Refusal::Recovering);
    assert!(world.table.why(waits).is_some_and(|why| why.reason == Reason::Recovering));
    let released = world.apply(Change::End { frame: held.frame });
    assert_eq!(grants(&released), [], "it is free, and the waiter stays");
    assert_eq!(grants(&world.apply(of(TWO, 0))), []);
    assert_eq!(unheard(&world), [ONE]);
    assert_eq!(grants(&world.apply(present(1))), [waits], "with the last word");
    assert_eq!(world.table.recovery(), None);
}

#[test]
fn a_host_that_is_gone_or_adopted_is_not_waited_for() {
    let (mut world, _, waits) = world();
    era(&mut world, false);
    join(&mut world, NEW);
    assert_eq!(unheard(&world), [ONE, TWO], "it joins with what it has to say");
    world.apply(Change::HostAdopt { old: TWO, new: NEW });
    assert_eq!(unheard(&world), [ONE]);
    world.apply(Change::Resume { request: waits });
    let outcomes = world.apply(Change::HostGone { host: ONE, by: NEW });
    assert_eq!(grants(&outcomes), [waits]);
}

#[test]
fn if_entries_may_be_missing_the_longest_ttl_has_to_pass_too() {
    let (mut world, held, waits) = world();
    world.apply(Change::Release(Release::All { frame: held.frame }));
    assert!(!world.waits(waits));
    let waits = world.wait(by(3).on(ONE).slots("a", 1));
    let first = era(&mut world, true);
    world.apply(present(1));
    world.apply(Change::Present {
        host: TWO,
        told: Token(2),
        bound: Token(2),
        lost: false,
        ttl_ms: 9_000,
        floor: Token(0),
    });
    assert_eq!(world.table.globals().longest_ttl_ms, 9_000);
    let second = era(&mut world, false);
    world.apply(present(1));
    world.apply(of(TWO, 2));
    assert_eq!(world.table.recovery().unwrap().ttl_from, Some(first), "still");
    let third = era(&mut world, true);
    assert!(first < second && second < third);
    world.apply(Change::TtlPassed { from: first });
    world.apply(present(1));
    world.apply(of(TWO, 2));
    assert_eq!(world.table.recovery().unwrap().ttl_from, Some(third), "counted from the last loss");
    world.apply(Change::HostGone { host: TWO, by: ONE });
    assert!(world.waits(waits));
    assert_eq!(grants(&world.apply(Change::TtlPassed { from: third })), [waits]);
    assert_eq!(world.apply(Change::TtlPassed { from: third }), [], "once more");
}

#[test]
fn a_token_that_the_log_never_gave_out_shows_that_entries_were_lost() {
    let (mut world, ..) = world();
    world.apply(present(1));
    assert_eq!(world.table.recovery(), None, "it gave that one out");
    world.apply(present(2));
    let recovery = world.table.recovery().unwrap();
    assert_eq!(recovery.ttl_from, Some(world.table.revision()));
    assert_eq!(world.table.globals().next_token, Token(3), "and it is not given out again");
}

#[test]
fn a_token_that_may_have_been_told_raises_the_next_token_and_shows_nothing() {
    let (mut world, ..) = world();
    let (told, bound) = (Token(1), Token(1_000));
    world.apply(Change::Present {
        host: ONE,
        told,
        bound,
        lost: false,
        ttl_ms: 1,
        floor: Token(1 << 40),
    });
    assert_eq!(world.table.recovery(), None);
    assert_eq!(world.take(by(9).slots("b", 1)).token, Token(1_001));
}

#[test]
fn within_a_recovery_tokens_are_held_against_what_the_log_gave_out_before_it() {
    let (mut world, ..) = world();
    world.apply(Change::Era { number: 1, may_lack: false, floor: Token(1 << 40) });
    assert_eq!(world.table.globals().next_token, Token(1 << 40));
    world.apply(present(1));
    assert_eq!(world.table.recovery().unwrap().ttl_from, None);
    world.apply(of(TWO, 2));
    let from = world.table.recovery().unwrap().ttl_from;
    assert_eq!(from, Some(world.table.revision()), "the engine was wrong that nothing is missing");
    assert_eq!(world.table.globals().next_token, Token(1 << 40));
}

#[test]
fn a_host_that_had_read_the_missing_entries_begins_a_recovery() {
    let (mut world, ..) = world();
    join(&mut world, NEW);
    let (told, bound) = (Token(0), Token(0));
    world.apply(Change::Present {
        host: NEW,
        told,
        bound,
        lost: true,
        ttl_ms: 1,
        floor: Token(1 << 40),
    });
    let recovery = world.table.recovery().unwrap();
    assert_eq!(recovery.ttl_from, Some(world.table.revision()));
    assert_eq!(
        world.table.globals().next_token,
        Token(1 << 40),
        "others may have been told larger ones"
    );
}

#[test]
fn an_era_that_the_log_names_already_changes_nothing() {
    let (mut world, ..) = world();
    era(&mut world, false);
    let before = world.table.snapshot();
    world.apply(Change::Era { number: 1, may_lack: true, floor: Token(1 << 40) });
    let mut after = world.table.snapshot();
    after.globals.revision = before.globals.revision;
    assert_eq!(before, after);
}

#[test]
fn a_deadlock_that_arises_meanwhile_is_broken_at_the_end() {
    let mut world = World::new();
    join(&mut world, ONE);
    world.take(by(1).on(ONE).write("x"));
    world.take(by(2).on(ONE).write("y"));
    let first = world.wait(by(1).on(ONE).write("y"));
    world.apply(Change::Suspend { request: first });
    let second = world.wait(by(2).on(ONE).write("x"));
    era(&mut world, false);
    assert_eq!(world.apply(Change::Resume { request: first }), []);
    let outcomes = world.apply(present(2));
    assert_eq!(victims(&world), [second], "{outcomes:?}");
    assert!(world.waits(first));
}

#[test]
fn waiters_keep_their_places() {
    let (mut world, held, first) = world();
    let second = world.wait(by(3).on(ONE).slots("a", 1));
    era(&mut world, false);
    world.apply(Change::End { frame: held.frame });
    world.apply(of(TWO, 0));
    let outcomes = world.apply(present(1));
    assert_eq!(grants(&outcomes), [first]);
    assert_eq!(world.table.served(&key("a")), [second]);
}

#[test]
fn a_snapshot_has_the_recovery_and_an_older_one_has_none() {
    let (mut world, ..) = world();
    era(&mut world, true);
    let state = world.table.snapshot();
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), state);
    let restored = Table::restore(&state).unwrap();
    assert_eq!(restored.recovery(), world.table.recovery());
    let plain = serde_json::to_string(&Table::default().snapshot()).unwrap();
    assert!(!plain.contains("era") && !plain.contains("recovery"), "{plain}");
    assert_eq!(serde_json::from_str::<Snapshot>(&plain).unwrap().globals.recovery, None);
}

#[test]
fn a_grant_that_was_not_told_before_history_was_lost_is_granted_again() {
    let (mut world, held, waits) = world();
    assert!(world.table.may_be_told(held.token));
    let from = era(&mut world, false);
    assert!(!world.table.may_be_told(held.token), "not before it is known that nothing is missing");
    world.apply(present(1));
    world.apply(of(TWO, 0));
    assert!(world.table.may_be_told(held.token), "{from}");
    let from = era(&mut world, true);
    world.apply(present(1));
    world.apply(of(TWO, 0));
    world.apply(Change::TtlPassed { from });
    assert!(!world.table.may_be_told(held.token));
    world.apply(Change::Suspend { request: held.request });
    assert!(!world.waits(waits), "the next one has it");
    assert!(world.table.may_be_told(world.table.hold_of(waits).unwrap().token));
    world.apply(Change::Resume { request: held.request });
    assert!(world.waits(held.request));
}
