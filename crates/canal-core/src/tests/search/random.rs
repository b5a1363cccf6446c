//! Random histories of small worlds, every step checked against brute force.

use std::sync::Arc;

use proptest::prelude::*;

use crate::tests::world::{Wish, World, by};
use crate::*;

#[derive(Clone, Debug)]
pub(in crate::tests) enum Op {
    /// A request, and the live frame to run it in, if any.
    Ask(Wish, Option<usize>),
    Release(u32, usize),
    ReleaseAll(u32),
    Die(u32),
    Withdraw(usize),
    Suspend(usize),
    Resume(usize),
    Detach,
    Resize(usize, Option<View>),
    Pause(usize, bool),
    Prioritize(usize, i32),
    Service(usize, u64, bool),
    Force(usize),
    Renew(u32),
    Expire(u32, bool),
    /// A part of a request over nodes, and the lease to run it under, if any.
    Part(Wish, Option<usize>),
    /// A confirmation with a token this much larger than the present one.
    ConfirmAt(usize, u64),
}

const KEYS: [&str; 4] = ["a", "b", "b/c", "b/c/d"];

/// Processes `1 ..= PIDS`.
const PIDS: u32 = 7;

fn view() -> impl Strategy<Value = Option<View>> {
    prop_oneof![
        3 => (1u64..3, 1u64..3).prop_map(|(per, buckets)| Some(View::Buckets { per, buckets })),
        2 => (1u64..4).prop_map(|slots| Some(View::Slots { slots })),
        3 => Just(None),
    ]
}

fn stored() -> impl Strategy<Value = Option<View>> {
    prop_oneof![
        (1u64..3, 0u64..3).prop_map(|(per, buckets)| Some(View::Buckets { per, buckets })),
        (1u64..4).prop_map(|slots| Some(View::Slots { slots })),
        Just(None),
    ]
}

fn supersede() -> impl Strategy<Value = Supersede> {
    let which = prop_oneof![Just(Superseded::Waiting), Just(Superseded::Running)];
    let group = prop::option::weighted(0.3, prop_oneof![Just("one"), Just("two")]);
    (group, prop::option::weighted(0.3, which))
        .prop_map(|(group, which)| Supersede { group: group.map(Into::into), which })
}

/// The user of a process.
fn uid_of(pid: u32) -> u32 {
    1000 + u32::from(pid == PIDS)
}

fn wish(modes: bool) -> impl Strategy<Value = Wish> {
    let item = (0usize..KEYS.len(), 0u64..5, view());
    let items = prop::collection::vec(item, 1..3);
    let max_waiting = prop::option::weighted(0.2, 0u64..4);
    let how = (prop::bool::weighted(0.1), 0i32..2, any::<bool>(), max_waiting, supersede());
    (1..=PIDS, items, how, any::<bool>()).prop_map(
        move |(pid, items, (now, priority, children, max_waiting, supersede), spread)| {
            let mut wish = by(pid).priority(priority);
            for (key, count, view) in items {
                wish = match count {
                    0 | 4 if modes && count == 0 => wish.write(KEYS[key]),
                    4 if modes => wish.read(KEYS[key]),
                    count => wish.item(KEYS[key], count % 2 + 1, view),
                };
            }
            wish.children = children;
            wish.max_waiting = max_waiting;
            wish.supersede = supersede;
            wish.uid = uid_of(pid);
            let wish = if spread { wish.spread() } else { wish };
            if now { wish.now() } else { wish }
        },
    )
}

/// A part of a request over some of four nodes, this one among them.
fn part_of(modes: bool) -> impl Strategy<Value = Wish> {
    let require =
        prop_oneof![3 => Just(Require::All), 3 => Just(Require::Majority), 1 => Just(Require::Any)];
    (wish(modes), 0u8..8, require, any::<bool>()).prop_map(|(wish, others, require, spare)| {
        let others = (0..3).filter(|at| others >> at & 1 == 1).map(|at| NodeId(at + 2));
        let nodes = std::iter::once(NodeId(1)).chain(others).collect();
        let over = OverNodes { run: RunId(wish.pid.into()), nodes, require, spare: false };
        let wish = Wish { ttl_ms: Some(1), provisional: true, over_nodes: Some(over), ..wish };
        if spare { wish.spare() } else { wish }
    })
}

pub(in crate::tests) fn op(modes: bool) -> impl Strategy<Value = Op> {
    prop_oneof![
        18 => (wish(modes), prop::option::weighted(0.4, 0usize..6))
            .prop_map(|(wish, parent)| Op::Ask(wish, parent)),
        4 => (1..=PIDS, 0usize..KEYS.len()).prop_map(|(pid, key)| Op::Release(pid, key)),
        1 => (1..=PIDS).prop_map(Op::ReleaseAll),
        2 => (1..=PIDS).prop_map(Op::Die),
        2 => (0usize..6).prop_map(Op::Withdraw),
        2 => (0usize..6).prop_map(Op::Suspend),
        3 => (0usize..6).prop_map(Op::Resume),
        1 => Just(Op::Detach),
        2 => (0usize..KEYS.len(), stored()).prop_map(|(key, view)| Op::Resize(key, view)),
        2 => (0usize..KEYS.len(), any::<bool>()).prop_map(|(key, paused)| Op::Pause(key, paused)),
        2 => (0usize..6, -1i32..3).prop_map(|(which, priority)| Op::Prioritize(which, priority)),
        3 => (0usize..KEYS.len(), 0u64..5, any::<bool>())
            .prop_map(|(key, number, out)| Op::Service(key, number, out)),
        1 => (0usize..6).prop_map(Op::Force),
        2 => wish(modes).prop_map(|wish| Op::Ask(Wish { ttl_ms: Some(1), ..wish }, None)),
        1 => (1..=PIDS).prop_map(Op::Renew),
        2 => (1..=PIDS, any::<bool>()).prop_map(|(name, late)| Op::Expire(name, late)),
        8 => (part_of(modes), prop::option::weighted(0.3, 0usize..4))
            .prop_map(|(wish, parent)| Op::Part(wish, parent)),
        4 => (0usize..6, 0u64..6).prop_map(|(which, more)| Op::ConfirmAt(which, more)),
    ]
}

pub(in crate::tests) fn run(world: &mut World, op: Op) {
    let waiter = |world: &World, which: usize| world.table.waiters().nth(which).map(|w| w.id);
    let any = |world: &World, which: usize| {
        let all = world.table.waiters().map(|w| w.id).chain(world.table.holds().map(|h| h.request));
        all.collect::<Vec<_>>().get(which).copied()
    };
    match op {
        Op::Ask(mut wish, parent) => {
            wish.parent = parent.map(|at| {
                let process = |owner: &Owner| matches!(owner, Owner::Process(_));
                let mut frames = world.table.frames().filter(|frame| process(&frame.owner));
                // Over an engine, the frame can have ended or be gone when the request arrives.
                frames.nth(at).map_or(FrameId(1), |frame| frame.id)
            });
            world.ask(wish);
        }
        Op::Part(mut wish, parent) => {
            wish.parent = parent.map(|at| {
                let mut frames = world.table.frames().filter(|frame| frame.lease.is_some());
                frames.nth(at).map_or(FrameId(1), |frame| frame.id)
            });
            world.ask(wish);
        }
        Op::ConfirmAt(which, more) => {
            let over = world.table.over_nodes.iter().copied().collect::<Vec<_>>();
            if let Some(request) = over.get(which).copied() {
                let token = world.table.hold_of(request).map_or(Token(7), |hold| hold.token);
                let before = world.table.globals().next_token;
                let outcomes = world.confirm_at(request, token.0 + more);
                if let [Outcome::ConfirmedAt { token, .. }] = outcomes[..] {
                    assert_eq!(world.table.hold_of(request).map(|hold| hold.token), Some(token));
                    let next = Token(token.0 + 1).max(before);
                    assert_eq!(world.table.globals().next_token, next);
                }
            }
        }
        Op::Release(pid, key) => drop(world.release(pid, KEYS[key])),
        Op::ReleaseAll(pid) => {
            let frame = world.frame(pid);
            world.apply(Change::Release(Release::All { frame }));
        }
        Op::Die(pid) => drop(world.die(pid)),
        Op::Withdraw(which) => {
            if let Some(request) = any(world, which) {
                world.apply(Change::Withdraw { request });
            }
        }
        Op::Suspend(which) => {
            if let Some(request) = any(world, which) {
                world.apply(Change::Suspend { request });
            }
        }
        Op::Resume(which) => {
            if let Some(request) = waiter(world, which) {
                world.apply(Change::Resume { request });
            }
        }
        Op::Detach => drop(world.apply(Change::Detach { host: HostId(0) })),
        Op::Resize(key, view) => drop(world.resize(KEYS[key], view)),
        Op::Pause(key, paused) => drop(world.pause(KEYS[key], paused)),
        Op::Prioritize(which, priority) => {
            if let Some(request) = waiter(world, which) {
                world.prioritize(request, priority);
            }
        }
        Op::Service(key, number, out) => drop(world.service(KEYS[key], &[number], out)),
        Op::Renew(name) => {
            let host = HostId(u64::from(name % 2));
            world.apply(Change::Renew {
                lease: LeaseId(name.into()),
                host,
                note: None,
                ttl_ms: None,
            });
        }
        Op::Expire(name, late) => {
            let frame = world.table.lease(LeaseId(name.into()));
            let lease = frame.and_then(|frame| world.table.frame(frame)?.lease);
            if let (Some(frame), Some(lease)) = (frame, lease) {
                let renewal = lease.renewals + u64::from(late);
                world.apply(Change::Expire { frame, renewal });
            }
        }
        Op::Force(which) => {
            let token = world.table.holds().nth(which).map(|hold| hold.token);
            if let Some(token) = token {
                world.apply(Change::Release(Release::Hold { token, forced: true }));
            }
        }
    }
}

/// The usage of a user.
fn counted(table: &Table, uid: u32) -> Usage {
    let holds = || table.holds().filter(|hold| hold.asked.uid == uid);
    let held = holds().flat_map(|hold| &hold.items).map(|item| key_room(&item.key));
    let waiters = table.waiters().filter(|waiter| waiter.request.uid == uid);
    let awaited = waiters.map(|waiter| room_of(&waiter.request.items));
    let leases = holds().filter(|hold| hold.asked.ttl_ms.is_some()).count();
    Usage { leases, key_bytes: held.chain(awaited).sum() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn every_step_with_slots_is_right_by_the_letter(ops in prop::collection::vec(op(false), 1..50)) {
        let mut world = World::new();
        world.apply(Change::Policy { bypass_max: 3 });
        for op in ops {
            run(&mut world, op);
        }
    }

    #[test]
    fn every_step_is_right_by_the_letter(ops in prop::collection::vec(op(true), 1..40)) {
        let mut world = World::new();
        world.apply(Change::Policy { bypass_max: 3 });
        for op in ops {
            run(&mut world, op);
            for uid in [1000, 1001] {
                prop_assert_eq!(world.table.usage(uid), counted(&world.table, uid));
            }
        }
        prop_assert_eq!(world.table.usage(1), Usage::default());
    }

    #[test]
    fn a_log_that_other_rules_decided_replays_as_it_was_decided(ops in prop::collection::vec(op(true), 1..60)) {
        let mut world = World::new();
        for op in ops {
            run(&mut world, op);
        }
        // With reversed priorities, the recorded outcomes belong to different rules.
        let mut other = Table::default();
        for (at, (entry, outcomes)) in world.log.iter().enumerate() {
            let mut entry = entry.clone();
            if let Change::Request(asked) = &mut entry.change {
                let asked = Arc::make_mut(asked);
                asked.priority = -asked.priority;
            }
            other.replay(Revision(at as u64 + 1), &entry, outcomes).unwrap();
        }
        let order_aside = |mut state: Snapshot| {
            for waiter in &mut state.waiters {
                waiter.passed = 0;
                Arc::make_mut(&mut waiter.request).priority = 0;
            }
            for hold in &mut state.holds {
                hold.passed = 0;
                Arc::make_mut(&mut hold.asked).priority = 0;
            }
            state
        };
        prop_assert_eq!(order_aside(other.snapshot()), order_aside(world.table.snapshot()));
    }

    #[test]
    fn no_hold_is_left_when_all_processes_have_ended(ops in prop::collection::vec(op(true), 1..60)) {
        let mut world = World::new();
        for op in ops {
            run(&mut world, op);
        }
        for key in KEYS {
            world.resize(key, None);
            world.pause(key, false);
            world.service(key, &[0, 1, 2, 3, 4], false);
        }
        for _ in 0..2 {
            let frames: Vec<FrameId> = world.table.frames().map(|frame| frame.id).collect();
            for frame in frames {
                world.apply(Change::End { frame });
            }
            let kept: Vec<Token> = world.table.holds().map(|hold| hold.token).collect();
            for token in kept {
                world.apply(Change::Release(Release::Hold { token, forced: false }));
            }
        }
        let state = world.table.snapshot();
        prop_assert!(state.frames.is_empty() && state.holds.is_empty() && state.waiters.is_empty());
        prop_assert_eq!(world.table.keys(None).count(), 0);
        prop_assert!(world.table.sessions.is_empty() && world.table.tags.is_empty());
        prop_assert!(world.table.owners.is_empty() && world.table.granted.is_empty());
        prop_assert!(world.table.over_nodes.is_empty());
    }
}
