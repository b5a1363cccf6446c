//! Explores small worlds completely: three sessions and three keys on a path, with every action in
//! every order. It checks every reachable state, and every refusal on the way, against brute force
//! ([`crate::tests::brute`]).
//!
//! A history matters only through the state that it leads to. In a state, only the order of
//! revisions, tokens and process numbers matters, so each state is examined once.

use std::collections::{BTreeMap, BTreeSet};

use crate::tests::brute;
use crate::tests::world::{Wish, apply_unchecked, by, key, owner};
use crate::*;

const KEYS: [&str; 3] = ["a", "a/b", "a/b/c"];
const READ: Ask = Ask::Read;
const WRITE: Ask = Ask::Write;
const ONE_OF_TWO: Ask = Ask::slots(1, Some(View::Buckets { per: 2, buckets: 1 }));
const MUTEX: Ask = Ask::slots(1, Some(View::Slots { slots: 1 }));

/// The world to explore, and how much of it.
#[derive(Clone, Copy)]
struct Scope {
    pids: &'static [u32],
    keys: &'static [&'static str],
    asks: &'static [Ask],
    /// The most items in a request.
    items: usize,
    /// The most holds and requests of a frame.
    requests: usize,
    /// The number of entries after which to stop, if there is a limit.
    depth: Option<usize>,
    /// Whether process 2 runs inside process 1.
    nested: bool,
    priorities: &'static [i32],
    /// The sizes that an operator stores for each key.
    stored: &'static [Option<View>],
    /// Whether an operator pauses keys and resumes them.
    pauses: bool,
    /// Whether there are also requests that may not wait.
    tries: bool,
    /// The buckets that an operator takes out of service and returns.
    without: &'static [u64],
    /// The older requests that a request supersedes.
    supersedes: &'static [Option<Superseded>],
    /// Whether waiters are stopped and continued.
    stops: bool,
    bypass_max: u32,
    /// The requests made before the search begins.
    start: fn() -> Vec<Wish>,
}

/// Three sessions that do everything possible with three keys.
const ALL: Scope = Scope {
    pids: &[1, 2, 3],
    keys: &KEYS,
    asks: &[READ, WRITE, ONE_OF_TWO],
    items: 1,
    requests: 2,
    depth: None,
    nested: false,
    priorities: &[0],
    stored: &[],
    pauses: false,
    tries: false,
    without: &[],
    supersedes: &[None],
    stops: false,
    bypass_max: BYPASS_MAX_DEFAULT,
    start: Vec::new,
};

const fn slots(count: u64, of: u64) -> Ask {
    Ask::slots(count, Some(View::Slots { slots: of }))
}

const fn buckets(count: u64, per: u64) -> Ask {
    Ask::slots(count, Some(View::Buckets { per, buckets: 1 }))
}

const fn spread(count: u64, per: u64, buckets: u64) -> Ask {
    let view = Some(View::Buckets { per, buckets });
    Ask::Counted { count, view, given: None, spread: true }
}

/// One key of every size: callers that state 1, 2, 3 or nothing, and an operator who stores 1, 2 or
/// 3, removes the size, pauses and resumes, at any time.
const SIZES: Scope = Scope {
    keys: &["a"],
    asks: &[Ask::slots(1, None), Ask::slots(2, None), slots(1, 1), slots(1, 2), slots(1, 3)],
    stored: &[
        None,
        Some(View::Slots { slots: 1 }),
        Some(View::Slots { slots: 2 }),
        Some(View::Slots { slots: 3 }),
    ],
    pauses: true,
    tries: true,
    requests: 1,
    ..ALL
};

/// The same with the other kind, including no buckets.
const BUCKETS: Scope = Scope {
    asks: &[Ask::slots(1, None), Ask::slots(2, None), buckets(1, 0), buckets(1, 2), buckets(2, 3)],
    stored: &[
        None,
        Some(View::Buckets { per: 1, buckets: 1 }),
        Some(View::Buckets { per: 2, buckets: 0 }),
        Some(View::Buckets { per: 3, buckets: 1 }),
    ],
    ..SIZES
};

/// A waiter for two keys, and another that repeatedly overtakes it by priority or with a larger
/// view. Meanwhile an operator resizes (which parks the waiter), pauses and resumes both keys, and
/// the waiter is stopped and continued.
const BYPASS: Scope = Scope {
    keys: &["a", "b"],
    asks: &[WRITE, slots(1, 3)],
    items: 2,
    requests: 1,
    priorities: &[0, 1],
    stored: &[None, Some(View::Slots { slots: 1 })],
    pauses: true,
    stops: true,
    bypass_max: 2,
    start: || {
        let two = Some(View::Slots { slots: 2 });
        vec![by(1).item("a", 1, two).read("b"), by(2).item("a", 2, two).write("b")]
    },
    ..ALL
};

/// The second waiter of `a` becomes a barrier at `b`, and so overtakes the first one.
const BARRIER: Scope = Scope {
    pids: &[1, 2, 3, 4, 5],
    items: 1,
    stored: &[],
    pauses: false,
    bypass_max: 1,
    start: || {
        let waiters = [by(2).write("a"), by(4).write("a").slots("b", 1)];
        [by(1).write("a"), by(3).slots("b", 1)].into_iter().chain(waiters).collect()
    },
    ..BYPASS
};

/// Buckets that leave service and return while requests of two sizes are spread over them or not.
const WITHOUT: Scope = Scope {
    keys: &["a"],
    asks: &[
        spread(1, 2, 2),
        Ask::slots(1, Some(View::Buckets { per: 1, buckets: 3 })),
        buckets(2, 2),
    ],
    stored: &[None, Some(View::Buckets { per: 2, buckets: 1 })],
    without: &[0, 1],
    ..ALL
};

/// The same for the slots of a re-entrant lock.
const WITHOUT_SLOTS: Scope = Scope {
    asks: &[slots(1, 2), slots(2, 2), Ask::slots(1, None)],
    stored: &[None, Some(View::Slots { slots: 1 })],
    pauses: true,
    ..WITHOUT
};

/// Requests for one of two keys or both that supersede others, or may not wait.
const SUPERSEDE: Scope = Scope {
    keys: &["a", "b"],
    asks: &[MUTEX],
    items: 2,
    tries: true,
    supersedes: &[None, Some(Superseded::Waiting), Some(Superseded::Running)],
    ..ALL
};

/// Counts of what the exploration reached.
#[derive(Debug, Default)]
struct Seen {
    depth: usize,
    states: usize,
    steps: usize,
    deadlocks: usize,
    rings: usize,
    paused: usize,
    too_large: usize,
    own_deadlocks: usize,
    /// Requests that were refused when a key was resumed.
    late: usize,
    /// Requests that were superseded.
    superseded: usize,
    /// Holds that inherited slots.
    heirs: usize,
    /// Waiters that were overtaken, and those that became barriers.
    passed: usize,
    barriers: usize,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.deadlocks += other.deadlocks;
        self.rings += other.rings;
        self.paused += other.paused;
        self.too_large += other.too_large;
        self.own_deadlocks += other.own_deadlocks;
        self.late += other.late;
        self.superseded += other.superseded;
        self.heirs += other.heirs;
        self.passed += other.passed;
        self.barriers += other.barriers;
    }

    fn note(&mut self, before: &Table, outcomes: &[Outcome], after: &Table) {
        let count = |table: &Table| table.waiters().map(|waiter| waiter.passed).sum::<u32>();
        self.passed += usize::from(count(after) > count(before));
        for outcome in outcomes {
            self.barriers += usize::from(matches!(outcome, Outcome::Barrier { .. }));
            let Outcome::Refused { request, why } = outcome else { continue };
            match why {
                Refusal::Paused { .. } => self.paused += 1,
                Refusal::TooLarge { .. } => self.too_large += 1,
                Refusal::OwnDeadlock { .. } => self.own_deadlocks += 1,
                Refusal::Superseded { .. } => self.superseded += 1,
                _ => {}
            }
            self.late += usize::from(
                matches!(why, Refusal::TooLarge { .. }) && before.waiter(*request).is_some(),
            );
        }
        let shares = |hold: &HoldState| hold.items.iter().any(|item| item.shared);
        self.heirs += after
            .holds()
            .filter(|hold| !shares(hold) && before.hold(hold.token).is_some_and(shares))
            .count();
    }
}

/// A state without the numbers that have no meaning. For each frame, by age: its identity (where
/// that matters), its enclosing frame, and its holds in the order of the grants. Then all waiters,
/// in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Normal {
    frames: Vec<(u32, Option<usize>, bool, Vec<Held>)>,
    waiters: Vec<(usize, Vec<Wanted>, i32, Standing)>,
    keys: Vec<(Key, Settings)>,
}

/// The key, the mode, whether it is shared, the number of slots, the slots where they matter, and
/// the applicable and the stated view.
type Held = (Key, Mode, bool, u64, Vec<u64>, Option<View>, Option<View>);
/// The key, the mode, the number of slots, the own and the stated view, and whether it is spread.
type Wanted = (Key, Mode, u64, Option<View>, Option<View>, bool);
/// How many times a waiter was overtaken, whether it is a barrier, whether it is stopped, and
/// whether its size is unchecked.
type Standing = (u32, bool, bool, bool);

fn pid(frame: &FrameState) -> u32 {
    let Owner::Process(process) = frame.owner else { panic!("there are only processes") };
    process.pid
}

fn normal(table: &Table, scope: Scope) -> Normal {
    let ids: BTreeMap<FrameId, usize> =
        table.frames().enumerate().map(|(at, frame)| (frame.id, at)).collect();
    let frames = table.frames().map(|frame| {
        let items = table.holds_in(frame.id).flat_map(|hold| &hold.items);
        let held = |item: &HeldItem| {
            let HeldItem { key, mode, slots, shared, view, stated } = item.clone();
            let numbers =
                if scope.without.is_empty() { Vec::new() } else { slots.iter().collect() };
            (key, mode, shared, slots.count(), numbers, view, stated)
        };
        let holds = items.map(held).collect();
        let who = if scope.nested { pid(frame) } else { 0 };
        (who, frame.parent.map(|parent| ids[&parent]), frame.ended, holds)
    });
    let waiters = table.waiters().map(|waiter| {
        let wanted = |Item { key, ask }: &Item| {
            let (count, own) = ask.counted().unwrap_or((0, None));
            (key.clone(), ask.mode(), count, own, ask.stated(), ask.is_spread())
        };
        let WaiterState { passed, barrier, size_unchecked, .. } = *waiter;
        let stopped = waiter.status != WaiterStatus::Active;
        let items = waiter.request.items.iter().map(wanted).collect();
        let standing = (passed, barrier, stopped, size_unchecked);
        (ids[&waiter.frame], items, waiter.request.priority, standing)
    });
    let keys = table.keys(None).map(|key| (key.clone(), table.settings(key).clone()));
    Normal { frames: frames.collect(), waiters: waiters.collect(), keys: keys.collect() }
}

/// Everything that can happen next.
fn changes(table: &Table, scope: Scope) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut strangers = 0;
    for &pid in scope.pids {
        let frame = table.frame_of(HostId(0), &owner(pid));
        // Processes that have nothing yet are equivalent, unless their places differ.
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
        changes
            .extend(table.waiters_in(frame).map(|waiter| Change::Withdraw { request: waiter.id }));
    }
    changes.extend(table.waiters().filter(|_| scope.stops).map(|waiter| {
        let request = waiter.id;
        match waiter.status {
            WaiterStatus::Active => Change::Suspend { request },
            _ => Change::Resume { request },
        }
    }));
    for key in scope.keys.iter().map(|name| key(name)) {
        let Settings { view: stored, paused, without } = table.settings(&key);
        let views = scope.stored.iter().filter(|view| **view != *stored).copied();
        let numbers = scope.without.iter().map(|number| Setting::Service {
            numbers: vec![*number],
            out: !without.0.contains(number),
        });
        let pauses = scope.pauses.then_some(Setting::Paused(!paused));
        let settings = views.map(Setting::View).chain(numbers).chain(pauses);
        changes.extend(settings.map(|setting| Change::Set { key: key.clone(), setting }));
    }
    changes
}

fn asks(table: &Table, pid: u32, scope: Scope) -> impl Iterator<Item = Change> {
    let encloses = scope.nested && pid == 2;
    let parent = table.frame_of(HostId(0), &owner(1)).filter(|_| encloses);
    let tag = Tag(u128::from(table.revision().0) + 1);
    let waits = [Some(Wait::Yes { until: None }), scope.tries.then_some(Wait::No)];
    lists(scope).into_iter().flat_map(move |items| {
        let how = scope.priorities.iter().flat_map(move |priority| {
            let waits = waits.into_iter().flatten();
            let ways = waits.flat_map(|wait| scope.supersedes.iter().map(move |it| (wait, *it)));
            ways.map(move |(wait, which)| (*priority, wait, which))
        });
        how.map(move |(priority, wait, which)| {
            let (items, supersede) = (items.clone(), Supersede { group: None, which });
            Wish { items, parent, priority, wait, supersede, ..by(pid) }.change(tag)
        })
    })
}

/// All lists of items, each key once.
fn lists(scope: Scope) -> Vec<Vec<Item>> {
    let mut lists = vec![Vec::new()];
    for name in scope.keys {
        let longer = lists.iter().filter(|list| list.len() < scope.items).flat_map(|list| {
            let item = |ask: &Ask| Item { key: key(name), ask: ask.clone() };
            scope.asks.iter().map(move |ask| [&list[..], &[item(ask)]].concat())
        });
        lists.extend(longer.collect::<Vec<_>>());
    }
    lists.split_off(1)
}

/// The victims of an entry, in order.
fn victims(outcomes: &[Outcome]) -> Vec<RequestId> {
    let victim = |outcome: &Outcome| match outcome {
        Outcome::Refused { request, why: Refusal::Deadlock { .. } } => Some(*request),
        _ => None,
    };
    outcomes.iter().filter_map(victim).collect()
}

/// Checks that if all requests that can never be granted form one simple ring of sessions, exactly
/// one is refused: that of the youngest session. Returns whether it was such a ring.
fn check_ring(before: &Table, change: &Change, outcomes: &[Outcome]) -> bool {
    let mut at = before.clone();
    at.globals.revision = Revision(before.revision().0 + 1);
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

/// If the sessions that can never proceed form one ring, in which each waits for exactly one other:
/// these sessions with the frame that each waits for, and the request of the youngest.
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

/// All successors of one state: the new ones, and the counts.
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
        seen.note(table, &outcomes, &after);
        brute::check_bypasses(table, &outcomes, &after);
        let refused = |outcome: &Outcome| matches!(outcome, Outcome::Refused { .. });
        let state = normal(&after, scope);
        let is_new = !known.contains(&state) && !new.contains_key(&state);
        if is_new || outcomes.iter().any(refused) {
            let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
            if is_new || !victims(&outcomes).is_empty() {
                brute::check_step(table, &entry, &outcomes, &after);
            } else {
                brute::check_decisions(table, &entry, &outcomes);
            }
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

/// Breadth-first, with the parts of each level in parallel.
fn explore(name: &str, scope: Scope) -> Seen {
    let mut start = Table::default();
    apply_unchecked(&mut start, Change::Policy { bypass_max: scope.bypass_max });
    for (wish, tag) in (scope.start)().into_iter().zip(1..) {
        apply_unchecked(&mut start, wish.change(Tag(u128::MAX - tag)));
    }
    let mut known = BTreeSet::from([normal(&start, scope)]);
    let mut level = vec![start];
    let mut all = Seen::default();
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
            all.add(&seen);
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
    println!("{name}: {all:?}");
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
fn two_sessions_with_every_size_and_priority_to_the_end() {
    let scope = Scope { pids: &[1, 2], priorities: &[0, 1], ..SIZES };
    let seen = explore("sizes", scope);
    assert!(seen.states > 1_000 && seen.paused > 100 && seen.too_large > 100, "{seen:?}");
    assert!(seen.late > 10, "{seen:?}");
    let seen = explore("buckets", Scope { asks: BUCKETS.asks, stored: BUCKETS.stored, ..scope });
    assert!(seen.states > 500 && seen.paused > 100 && seen.late > 10, "{seen:?}");
}

#[test]
fn three_sessions_with_every_size() {
    let seen = explore("three sizes", Scope { depth: Some(4), ..SIZES });
    assert!(seen.states > 2_000 && seen.too_large > 100, "{seen:?}");
}

#[test]
fn a_nested_run_and_another_session_with_every_size() {
    let scope = Scope { nested: true, requests: 2, ..SIZES };
    let seen = explore("nested sizes", Scope { depth: Some(4), ..scope });
    assert!(seen.states > 2_000 && seen.heirs > 50 && seen.own_deadlocks > 50, "{seen:?}");
    let scope = Scope { asks: BUCKETS.asks, stored: BUCKETS.stored, ..scope };
    let seen = explore("nested buckets", Scope { depth: Some(4), ..scope });
    assert!(seen.states > 2_000 && seen.own_deadlocks > 50, "{seen:?}");
}

#[test]
fn a_waiter_of_several_keys_keeps_count_of_those_that_pass_it() {
    let seen = explore("bypass", Scope { depth: Some(4), ..BYPASS });
    assert!(seen.passed > 100 && seen.barriers > 0, "{seen:?}");
    let seen = explore("barrier", Scope { depth: Some(4), ..BARRIER });
    assert!(seen.passed > 100 && seen.barriers > 100, "{seen:?}");
}

#[test]
fn buckets_leave_service_and_return() {
    let seen = explore("without", Scope { depth: Some(4), ..WITHOUT });
    assert!(seen.states > 1_000 && seen.too_large > 100, "{seen:?}");
    let seen = explore("without slots", Scope { depth: Some(4), ..WITHOUT_SLOTS });
    assert!(seen.states > 1_000 && seen.too_large > 100, "{seen:?}");
    let nested = Scope { nested: true, requests: 2, ..WITHOUT_SLOTS };
    let seen = explore("nested without", Scope { depth: Some(4), pids: &[1, 2], ..nested });
    assert!(seen.heirs > 10 && seen.own_deadlocks > 10, "{seen:?}");
}

#[test]
fn three_sessions_that_supersede_each_other() {
    let seen = explore("supersede", Scope { depth: Some(4), ..SUPERSEDE });
    assert!(seen.superseded > 500, "{seen:?}");
    let seen = explore("nested supersede", Scope { depth: Some(4), nested: true, ..SUPERSEDE });
    assert!(seen.superseded > 300, "{seen:?}");
}

#[test]
#[ignore = "minutes; cargo test --release -p canal-core explore -- --ignored --nocapture"]
fn larger_worlds() {
    explore("all, slots", Scope { asks: &[READ, WRITE, MUTEX], depth: Some(5), ..ALL });
    explore("all", Scope { depth: Some(5), ..ALL });
    explore("nested", Scope { depth: Some(4), nested: true, ..ALL });
    explore("one key", Scope { keys: &["a"], ..ALL });
    explore("one key, nested", Scope { keys: &["a"], nested: true, ..ALL });
    explore("read and write", Scope { keys: &["a", "a/b"], asks: &[READ, WRITE], ..ALL });
    explore("write and count", Scope { keys: &["a", "a/b"], asks: &[WRITE, ONE_OF_TWO], ..ALL });
    explore("sizes", Scope { depth: Some(6), ..SIZES });
    explore("sizes, nested", Scope { depth: Some(5), nested: true, requests: 2, ..SIZES });
    let scope = Scope { keys: &["a", "b"], pids: &[1, 2], requests: 2, ..SIZES };
    explore("sizes, two keys", Scope { depth: Some(5), ..scope });
    explore("buckets", Scope { depth: Some(6), ..BUCKETS });
    explore("bypass", Scope { depth: Some(6), ..BYPASS });
    explore("barrier", Scope { depth: Some(6), ..BARRIER });
}
