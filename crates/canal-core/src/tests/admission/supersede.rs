//! Newer requests that supersede older ones.

use crate::tests::world::{Wish, World, apply_unchecked, by, granted, key, lease};
use crate::*;

fn newest(pid: u32) -> Wish {
    by(pid).slots("deploy", 1).supersedes(Superseded::Waiting)
}

/// The requests that outcomes refuse as superseded.
fn superseded(outcomes: &[Outcome]) -> Vec<RequestId> {
    let of = |outcome: &Outcome| match outcome {
        Outcome::Refused { request, why: Refusal::Superseded { .. } } => Some(*request),
        _ => None,
    };
    outcomes.iter().filter_map(of).collect()
}

#[test]
fn the_newest_request_waits_alone() {
    let mut world = World::new();
    world.take(newest(1));
    let first = world.wait(newest(2));
    let (second, outcomes) = world.ask(newest(3));
    assert_eq!(superseded(&outcomes), [first]);
    // A stopped one and one whose daemon restarted are superseded, too.
    world.apply(Change::Suspend { request: second });
    let (third, outcomes) = world.ask(newest(4));
    assert_eq!(superseded(&outcomes), [second]);
    world.apply(Change::Detach { host: HostId(0) });
    let (fourth, outcomes) = world.ask(newest(5));
    assert_eq!(superseded(&outcomes), [third]);
    assert_eq!(world.die(1), [fourth]);
}

#[test]
fn only_requests_of_the_same_user_and_the_same_keys_are_superseded() {
    let mut world = World::new();
    world.take(by(1).slots("deploy", 1).slots("other", 1));
    let others = [
        world.wait(newest(2).user(1001)),
        world.wait(newest(3).group("main")),
        world.wait(by(4).slots("deploy", 1).slots("other", 1)),
        world.wait(by(5).slots("other", 1)),
    ];
    let same = world.wait(by(6).slots("deploy", 1));
    let (_, outcomes) = world.ask(newest(7));
    assert_eq!(superseded(&outcomes), [same]);
    assert!(others.iter().all(|other| world.waits(*other)));
    // The order of the keys does not matter.
    let both = by(8).slots("other", 1).slots("deploy", 1).supersedes(Superseded::Waiting);
    assert_eq!(superseded(&world.ask(both).1), [others[2]]);
}

#[test]
fn a_group_ties_requests_for_different_keys() {
    let mut world = World::new();
    world.take(by(1).slots("build", 1).slots("test", 1));
    let build = world.wait(by(2).slots("build", 1).group("pr-7"));
    let other = world.wait(by(3).slots("build", 1).group("pr-8"));
    let test = by(4).slots("test", 1).group("pr-7").supersedes(Superseded::Waiting);
    assert_eq!(superseded(&world.ask(test).1), [build]);
    assert!(world.waits(other));
}

#[test]
fn a_request_that_is_refused_supersedes_none() {
    let mut world = World::new();
    world.take(newest(1));
    let waiter = world.wait(newest(2));
    assert_eq!(world.refused(newest(3).now()), Refusal::Full { item: 0 });
    let large = by(3).item("deploy", 5, Some(View::Slots { slots: 1 }));
    let large = large.supersedes(Superseded::Waiting);
    assert!(matches!(world.refused(large), Refusal::TooLarge { .. }));
    assert!(world.waits(waiter));
    // Those that it supersedes do not count as waiting.
    let (_, outcomes) = world.ask(newest(4).max_waiting(1));
    assert_eq!(superseded(&outcomes), [waiter]);
}

#[test]
fn a_request_supersedes_neither_its_own_frame_nor_those_around_it() {
    let mut world = World::new();
    let outer = world.take(by(1).slots("a", 1)).frame;
    world.take(by(9).slots("deploy", 1));
    let waits = world.wait(newest(1));
    let (inner, outcomes) = world.ask(newest(2).under(outer));
    assert_eq!(superseded(&outcomes), []);
    assert!(world.waits(waits) && world.waits(inner));
    // A sibling inside the same session is another job.
    let (_, outcomes) = world.ask(newest(3).under(outer));
    assert_eq!(superseded(&outcomes), [inner]);
}

#[test]
fn a_superseded_request_that_comes_back_stays_superseded() {
    let mut world = World::new();
    world.take(newest(1));
    let old = world.wait(newest(2));
    let tag = world.table.waiter(old).unwrap().request.tag;
    let (new, _) = world.ask(newest(3));
    let outcomes = world.apply(newest(2).change(tag));
    let again = RequestId(world.table.revision().0);
    let why = Refusal::Superseded { by: new };
    assert_eq!(outcomes, [Outcome::Refused { request: again, why }]);
    assert!(world.waits(new));
    // The table forgets the oldest ones.
    for pid in 10..10 + u32::try_from(SUPERSEDED_MAX).unwrap() {
        apply_unchecked(&mut world.table, newest(pid).change(Tag(u128::from(pid) << 64)));
    }
    assert_eq!(world.table.snapshot().globals.superseded.len(), SUPERSEDED_MAX);
    assert!(world.table.snapshot().globals.superseded.iter().all(|past| past.tag != tag));
}

#[test]
fn the_holds_that_a_request_supersedes_are_those_of_older_requests() {
    let mut world = World::new();
    let running = |pid| by(pid).slots("deploy", 2).supersedes(Superseded::Running);
    let one = world.take(running(1)).token;
    let (second, outcomes) = world.ask(running(2));
    let two = granted(&outcomes, second).unwrap().token;
    assert_eq!(world.table.superseded_holds(second), [one]);
    let third = world.wait(running(3));
    assert_eq!(world.table.superseded_holds(third), [one, two]);
    // A newer request that runs is not superseded by the older one.
    world.die(1);
    world.die(2);
    let (fourth, _) = world.ask(by(4).slots("deploy", 2));
    assert!(world.table.hold_of(fourth).is_some());
    assert_eq!(world.table.superseded_holds(third), []);
    assert_eq!(world.table.superseded_holds(fourth), []);
}

#[test]
fn a_hold_without_a_process_on_the_same_host_cannot_be_superseded() {
    let mut world = World::new();
    let running = |pid| by(pid).slots("deploy", 1).supersedes(Superseded::Running);
    let token = world.take(lease(1).slots("deploy", 1)).token;
    let waiter = world.wait(by(2).slots("deploy", 1));
    assert_eq!(world.refused(running(3)), Refusal::CannotEnd { token });
    assert!(world.waits(waiter));
    world.wait(newest(4));
    world.apply(Change::Release(Release::Hold { token, forced: true }));
    let host = HostId(7);
    let (label, identity) = ("beta".to_owned(), String::new());
    world.apply(Change::HostJoin { host, label, identity });
    let token = world.table.holders(&key("deploy")).next().unwrap();
    assert_eq!(world.refused(running(5).on(host)), Refusal::CannotEnd { token });
}

#[test]
fn requests_behind_a_superseded_one_go_on() {
    let mut world = World::new();
    let of = |pid, count| by(pid).item("k", count, Some(View::Slots { slots: 3 }));
    world.take(of(1, 1));
    let large = world.wait(of(2, 3));
    let small = world.wait(of(3, 1).user(1001));
    // The newcomer waits behind the small one, which no longer waits behind the large one.
    let (newest, outcomes) = world.ask(of(4, 3).supersedes(Superseded::Waiting));
    assert_eq!(superseded(&outcomes), [large]);
    assert!(granted(&outcomes, small).is_some() && world.waits(newest));
}

#[test]
fn a_request_granted_only_past_an_older_one_supersedes_it_all_the_same() {
    let mut world = World::new();
    // Process 2 fills one bucket of two. Without the older request, the last one would have to let
    // a request for the other bucket go first.
    let halves = Some(View::Buckets { per: 2, buckets: 2 });
    world.take(by(2).item("b", 2, halves));
    let older = world.wait(by(1).canal("b", 1, 1).write("b/c").priority(1));
    let ahead = world.wait(by(3).item("b", 2, None));
    let newer = by(2).write("b").write("b/c").now().supersedes(Superseded::Waiting);
    let (newer, outcomes) = world.ask(newer);
    assert!(granted(&outcomes, newer).is_some(), "{outcomes:?}");
    assert_eq!(superseded(&outcomes), [older]);
    assert!(world.waits(ahead));
}
