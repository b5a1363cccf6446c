//! Small worlds explored to the end: three sessions, three keys on a path, everything they can do
//! in every order. Every state that can be reached, and every refusal on the way, is held against
//! brute force ([`crate::core::tests::brute`]).
//!
//! A history matters only by the state that it leads to: revisions, tokens and process numbers
//! stand in it for nothing but their order, so each state is looked at once.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::tests::brute;
use crate::core::tests::world::{Wish, apply_unchecked, by, key, owner};
use crate::core::*;

const KEYS: [&str; 3] = ["a", "a/b", "a/b/c"];
const READ: Ask = Ask::Read;
const WRITE: Ask = Ask::Write;
const ONE_OF_TWO: Ask = Ask::Counted { count: 1, view: Some(View::Buckets { per: 2, buckets: 1 }) };
const MUTEX: Ask = Ask::Counted { count: 1, view: Some(View::Slots { slots: 1 }) };

/// Which world, and how much of it.
#[derive(Clone, Copy)]
struct Scope {
    pids: &'static [u32],
    keys: &'static [&'static str],
    asks: &'static [Ask],
    /// How many holds and requests a frame has at most.
    requests: usize,
    /// How many entries deep, if not to the end.
    depth: Option<usize>,
    /// Whether process 2 runs inside process 1.
    nested: bool,
}

/// Three sessions that do whatever they can do with three keys.
const ALL: Scope = Scope {
    pids: &[1, 2, 3],
    keys: &KEYS,
    asks: &[READ, WRITE, ONE_OF_TWO],
    requests: 2,
    depth: None,
    nested: false,
};

/// What exploring saw.
#[derive(Debug, Default)]
struct Seen {
    depth: usize,
    states: usize,
    steps: usize,
    deadlocks: usize,
    rings: usize,
}

/// A state without the numbers that stand for nothing: of each frame, by age, who it is (where
/// that matters), what encloses it, what it holds in the order of the grants; then all who wait,
/// in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Normal {
    frames: Vec<(u32, Option<usize>, bool, Vec<Held>)>,
    waiters: Vec<(usize, Key, Mode)>,
}

type Held = (Key, Mode, bool);

fn pid(frame: &FrameState) -> u32 {
    let Owner::Process(process) = frame.owner else { panic!("there are only processes") };
    process.pid
}

fn normal(table: &Table, scope: Scope) -> Normal {
    let ids: BTreeMap<FrameId, usize> =
        table.frames().enumerate().map(|(at, frame)| (frame.id, at)).collect();
    let frames = table.frames().map(|frame| {
        let items = table.holds_in(frame.id).flat_map(|hold| &hold.items);
        let holds = items.map(|item| (item.key.clone(), item.mode, item.shared)).collect();
        let who = if scope.nested { pid(frame) } else { 0 };
        (who, frame.parent.map(|parent| ids[&parent]), frame.ended, holds)
    });
    let waiters = table.waiters().map(|waiter| {
        let item = &waiter.request.items[0];
        (ids[&waiter.frame], item.key.clone(), item.ask.mode())
    });
    Normal { frames: frames.collect(), waiters: waiters.collect() }
}

/// Everything that can happen next.
fn changes(table: &Table, scope: Scope) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut strangers = 0;
    for &pid in scope.pids {
        let frame = table.frame_of(HostId(0), &owner(pid));
        // Those who have nothing yet are all alike, unless they stand in different places.
        strangers += usize::from(frame.is_none());
        if strangers > 1 && frame.is_none() && !scope.nested {
            continue;
        }
        let has = frame
            .map_or(0, |frame| table.holds_in(frame).count() + table.waiters_in(frame).count());
        if has < scope.requests {
            changes.extend(asks(table, pid, scope));
        }
        let Some(frame) = frame else { continue };
        changes.push(Change::End { frame });
        let held: BTreeSet<&Key> =
            table.holds_in(frame).flat_map(|hold| &hold.items).map(|item| &item.key).collect();
        changes.extend(
            held.into_iter()
                .map(|key| Change::Release(Release::Latest { frame, key: key.clone() })),
        );
        let why = Withdrawal::Cancelled;
        changes.extend(
            table.waiters_in(frame).map(|waiter| Change::Withdraw { request: waiter.id, why }),
        );
    }
    changes
}

fn asks(table: &Table, pid: u32, scope: Scope) -> impl Iterator<Item = Change> {
    let encloses = scope.nested && pid == 2;
    let parent = table.frame_of(HostId(0), &owner(1)).filter(|_| encloses);
    let tag = Tag(u128::from(table.revision().0) + 1);
    let items = scope
        .keys
        .iter()
        .flat_map(|name| scope.asks.iter().map(|ask| Item { key: key(name), ask: ask.clone() }));
    items.map(move |item| {
        let wish = Wish { items: vec![item], parent, ..by(pid) };
        wish.change(tag)
    })
}

/// The victims of an entry, in order.
fn victims(outcomes: &[Outcome]) -> Vec<RequestId> {
    let victim = |outcome: &Outcome| match outcome {
        Outcome::Refused { request, why: Refusal::Deadlock { .. } } => Some(*request),
        _ => None,
    };
    outcomes.iter().filter_map(victim).collect()
}

/// If all that wait in vain are one simple ring of sessions, it loses exactly one, the youngest.
/// Whether it was one.
fn check_ring(before: &Table, change: &Change, outcomes: &[Outcome]) -> bool {
    let mut at = before.clone();
    at.revision = Revision(before.revision().0 + 1);
    let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change: change.clone() };
    at.mark(&entry);
    for outcome in outcomes {
        if matches!(outcome, Outcome::Refused { why: Refusal::Deadlock { .. }, .. }) {
            break;
        }
        at.carry_out(&entry, outcome).unwrap();
    }
    let Some((ring, youngest)) = simple_ring(&at) else { return false };
    assert!(ring.len() > 1);
    let victims = victims(outcomes);
    assert_eq!(victims, [youngest], "{ring:?} {change:?} {outcomes:?}");
    true
}

/// The sessions that wait in vain with the one request of each, and the request of the youngest,
/// if each waits for exactly one other, in one ring.
fn simple_ring(table: &Table) -> Option<(BTreeMap<FrameId, FrameId>, RequestId)> {
    let stuck = brute::waiting_in_vain(&table.snapshot());
    let mut ring = BTreeMap::new();
    for request in &stuck {
        let waiter = table.waiter(*request)?;
        let session = table.session(waiter.frame);
        let blockers = table.blockers(*request);
        let others: BTreeSet<FrameId> =
            blockers.iter().map(|blocker| table.session(blocker.by.frame())).collect();
        let [other] = others.into_iter().collect::<Vec<_>>()[..] else { return None };
        if other == session || ring.insert(session, other).is_some() {
            return None;
        }
    }
    let (first, _) = ring.first_key_value()?;
    let walk = std::iter::successors(Some(first), |session| ring.get(*session));
    let walked: BTreeSet<&FrameId> = walk.take(ring.len()).collect();
    let youngest = ring.keys().next_back()?;
    let of = |request: &&RequestId| {
        table.waiter(**request).is_some_and(|waiter| table.session(waiter.frame) == *youngest)
    };
    let request = *stuck.iter().find(of)?;
    (walked.len() == ring.len() && ring.values().all(|next| ring.contains_key(next)))
        .then_some((ring, request))
}

/// All that can come of one state: the new ones, and what was seen.
fn step(
    table: &Table,
    scope: Scope,
    known: &BTreeSet<Normal>,
    new: &mut BTreeMap<Normal, Table>,
    seen: &mut Seen,
) {
    for change in changes(table, scope) {
        let mut after = table.clone();
        let outcomes = apply_unchecked(&mut after, change.clone());
        seen.steps += 1;
        let refused = outcomes.iter().any(|outcome| {
            matches!(
                outcome,
                Outcome::Refused {
                    why: Refusal::Deadlock { .. } | Refusal::OwnDeadlock { .. },
                    ..
                }
            )
        });
        let state = normal(&after, scope);
        let is_new = !known.contains(&state) && !new.contains_key(&state);
        if is_new || refused {
            let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
            brute::check_step(table, &entry, &outcomes, &after);
            if !victims(&outcomes).is_empty() {
                seen.deadlocks += 1;
                seen.rings += usize::from(check_ring(table, &entry.change, &outcomes));
            }
        }
        if is_new {
            new.insert(state, after);
        }
    }
}

/// Breadth first, each level in parts beside each other.
fn explore(name: &str, scope: Scope) -> Seen {
    let start = Table::new(Rules::Current);
    let mut known = BTreeSet::from([normal(&start, scope)]);
    let mut level = vec![start];
    let mut all = Seen::default();
    let begun = std::time::Instant::now();
    for depth in 1..=scope.depth.unwrap_or(usize::MAX) {
        let parts = level.chunks(level.len().div_ceil(4).max(1));
        let found: Vec<(BTreeMap<Normal, Table>, Seen)> = std::thread::scope(|threads| {
            let known = &known;
            let threads: Vec<_> = parts
                .map(|part| {
                    threads.spawn(move || {
                        let (mut new, mut seen) = (BTreeMap::new(), Seen::default());
                        for table in part {
                            step(table, scope, known, &mut new, &mut seen);
                        }
                        (new, seen)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        level = Vec::new();
        for (new, seen) in found {
            all.steps += seen.steps;
            all.deadlocks += seen.deadlocks;
            all.rings += seen.rings;
            level.extend(
                new.into_iter().filter_map(|(state, table)| known.insert(state).then_some(table)),
            );
        }
        all.states = known.len();
        all.depth = depth;
        if level.is_empty() {
            break;
        }
    }
    println!("{name}: {all:?} in {:.1?}", begun.elapsed());
    all
}

#[test]
fn three_sessions_three_keys_and_every_mode() {
    let seen = explore("all", Scope { depth: Some(4), ..ALL });
    assert!(seen.states > 30_000 && seen.rings > 500, "{seen:?}");
}

#[test]
fn two_sessions_three_keys_and_every_mode_to_the_end() {
    let seen = explore("two sessions", Scope { pids: &[1, 2], ..ALL });
    assert!(seen.states > 14_000 && seen.rings > 500, "{seen:?}");
}

#[test]
fn three_sessions_that_read_write_and_upgrade_one_key_to_the_end() {
    let seen = explore("one key", Scope { keys: &["a"], asks: &[READ, WRITE], ..ALL });
    assert!(seen.states > 2_000 && seen.rings > 40, "{seen:?}");
}

#[test]
fn a_nested_run_and_another_session_at_one_key() {
    let scope = Scope { keys: &["a"], asks: &[READ, WRITE], nested: true, ..ALL };
    let seen = explore("nested", Scope { depth: Some(6), ..scope });
    assert!(seen.states > 4_000 && seen.deadlocks > 150, "{seen:?}");
}

#[test]
#[ignore = "minutes; cargo test --release --lib explore -- --ignored --nocapture"]
fn larger_worlds() {
    explore("all, slots", Scope { asks: &[READ, WRITE, MUTEX], depth: Some(5), ..ALL });
    explore("all", Scope { depth: Some(5), ..ALL });
    explore("nested", Scope { depth: Some(4), nested: true, ..ALL });
    explore("one key", Scope { keys: &["a"], ..ALL });
    explore("one key, nested", Scope { keys: &["a"], nested: true, ..ALL });
    explore("read and write", Scope { keys: &["a", "a/b"], asks: &[READ, WRITE], ..ALL });
    explore("write and count", Scope { keys: &["a", "a/b"], asks: &[WRITE, ONE_OF_TWO], ..ALL });
}
