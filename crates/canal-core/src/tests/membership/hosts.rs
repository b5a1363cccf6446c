//! Hosts: joining, adopting, and the end of a host.

use proptest::prelude::*;

use crate::tests::search::random::{Op, op, run};
use crate::tests::world::{World, by, grants, lease, owner};
use crate::*;

const HERE: HostId = HostId(0);
const NEXT: HostId = HostId(7);

fn gone(world: &mut World) -> Vec<Outcome> {
    world.apply(Change::HostGone { host: HERE, by: NEXT })
}

fn join(world: &mut World, host: HostId) {
    let (label, identity) = (format!("host{host}"), "uid 0".to_owned());
    world.apply(Change::HostJoin { host, label, identity });
}

#[test]
fn rule_06_the_entry_frees_the_holds_of_a_gone_host_also_those_kept_for_descendants() {
    let mut world = World::new();
    join(&mut world, HERE);
    let mut kept = by(1).slots("a", 1);
    kept.children = true;
    let kept = world.take(kept).request;
    world.die(1);
    assert!(world.table.hold_of(kept).unwrap().orphaned);
    world.take(by(2).write("b"));
    let waits = world.wait(by(3).slots("a", 1));
    let outcomes = gone(&mut world);
    assert!(outcomes.contains(&Outcome::Withdrawn { request: waits }));
    assert_eq!(grants(&outcomes), [], "nobody of a gone host is granted anything");
    let state = world.table.snapshot();
    assert!(state.frames.is_empty() && state.holds.is_empty() && state.waiters.is_empty());
    assert!(state.globals.hosts.is_empty());
}

#[test]
fn rule_06_waiters_of_other_hosts_are_granted_by_the_entry_itself() {
    let mut world = World::new();
    join(&mut world, HERE);
    world.take(by(1).slots("a", 1));
    let here = world.wait(by(2).slots("a", 1));
    let other = world.wait(by(3).on(NEXT).slots("a", 1));
    let outcomes = gone(&mut world);
    assert_eq!(grants(&outcomes), [other], "and not the one before it, of the gone host");
    assert!(!world.waits(here));
    assert!(world.apply(Change::HostGone { host: HERE, by: NEXT }).is_empty(), "once more");
}

#[test]
fn rule_06_leases_of_a_gone_host_move_to_the_host_that_ended_it() {
    let mut world = World::new();
    let frame = world.take(lease(1).slots("a", 1)).frame;
    let waiting = world.wait(lease(2).slots("a", 1));
    let mut untold = lease(3).slots("b", 1);
    untold.provisional = true;
    let untold = world.take(untold);
    let outcomes = gone(&mut world);
    assert!(outcomes.contains(&Outcome::LeaseMoved { frame, host: NEXT }));
    assert!(outcomes.contains(&Outcome::Withdrawn { request: waiting }));
    assert_eq!(world.table.hold(untold.token), None, "who asked for it was never told");
    assert_eq!(world.table.frame(frame).unwrap().host, NEXT);
    assert_eq!(world.held("a"), 1);
}

#[test]
fn rule_11_a_lease_follows_the_renewing_host_and_a_late_expiry_is_void() {
    let mut world = World::new();
    let frame = world.take(lease(1).slots("a", 1)).frame;
    world.apply(Change::Renew { lease: LeaseId(1), host: NEXT, note: None, ttl_ms: None });
    assert_eq!(world.table.frame(frame).unwrap().host, NEXT);
    assert_eq!(world.apply(Change::Expire { frame, renewal: 0 }), []);
    gone(&mut world);
    assert_eq!(world.held("a"), 1, "it was looked after elsewhere");
    let outcomes = world.apply(Change::HostGone { host: NEXT, by: HERE });
    assert_eq!(outcomes, [Outcome::LeaseMoved { frame, host: HERE }]);
    world.apply(Change::Expire { frame, renewal: 1 });
    assert_eq!(world.held("a"), 0);
}

#[test]
fn rule_08_adopted_sessions_keep_everything_and_their_waiters_are_detached() {
    let mut world = World::new();
    join(&mut world, HERE);
    let held = world.take(by(1).slots("a", 1));
    let waits = world.wait(by(2).slots("a", 1));
    let leased = world.take(lease(3).slots("b", 1)).frame;
    join(&mut world, NEXT);
    world.apply(Change::HostAdopt { old: HERE, new: NEXT });
    assert_eq!(
        world.table.globals().hosts.values().map(|host| host.id).collect::<Vec<_>>(),
        [NEXT]
    );
    assert_eq!(world.table.hold(held.token).unwrap().asked.host, NEXT);
    assert_eq!(world.table.waiter(waits).unwrap().status, WaiterStatus::Detached);
    assert_eq!(world.table.waiter(waits).unwrap().request.host, NEXT);
    assert_eq!(world.table.frame(leased).unwrap().host, NEXT);
    assert_eq!(world.table.frame_of(NEXT, &owner(1)), Some(held.frame));
    assert_eq!(world.table.frame_of(HERE, &owner(1)), None);
    world.apply(Change::End { frame: held.frame });
    assert!(world.waits(waits), "not before it is back");
    let outcomes = world.apply(Change::Resume { request: waits });
    assert_eq!(grants(&outcomes), [waits]);
    gone(&mut world);
    assert_eq!(world.held("a"), 1, "the old incarnation has nothing any more");
}

#[test]
fn rule_08_a_host_with_sessions_of_its_own_adopts_nothing() {
    let mut world = World::new();
    world.take(by(1).slots("a", 1));
    let other = world.take(by(1).on(NEXT).slots("b", 1));
    world.apply(Change::HostAdopt { old: HERE, new: NEXT });
    assert_eq!(world.table.frames_of_host(HERE).count(), 1);
    assert_eq!(world.table.frames_of_host(NEXT).collect::<Vec<_>>(), [other.frame]);
}

/// The events that can happen on two hosts.
#[derive(Clone, Debug)]
enum Step {
    Op(Box<Op>),
    On(HostId),
    Gone(HostId),
    Adopt(HostId),
    Era(bool),
    Present(HostId, u64, bool),
    TtlPassed,
}

fn step() -> impl Strategy<Value = Step> {
    let host = prop_oneof![Just(HERE), Just(NEXT)];
    prop_oneof![
        12 => op(true).prop_map(|op| Step::Op(Box::new(op))),
        4 => host.clone().prop_map(Step::On),
        1 => host.clone().prop_map(Step::Gone),
        1 => host.clone().prop_map(Step::Adopt),
        1 => any::<bool>().prop_map(Step::Era),
        2 => (host, 0..4u64, prop::bool::weighted(0.1))
            .prop_map(|(host, told, lost)| Step::Present(host, told, lost)),
        2 => Just(Step::TtlPassed),
    ]
}

fn released(outcomes: &[Outcome]) -> Vec<Token> {
    let token = |outcome: &Outcome| match outcome {
        Outcome::Released { token, .. } => Some(*token),
        _ => None,
    };
    let mut tokens: Vec<Token> = outcomes.iter().filter_map(token).collect();
    tokens.sort_unstable();
    tokens
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn rule_06_that_a_host_is_gone_equals_the_end_of_each_of_its_processes(
        ops in prop::collection::vec(op(true), 1..40)
    ) {
        let mut world = World::new();
        for op in ops {
            run(&mut world, op);
        }
        // With waiters, slots that become free one by one could also be granted one by one.
        let waiting: Vec<RequestId> = world.table.waiters().map(|waiter| waiter.id).collect();
        for request in waiting {
            world.apply(Change::Withdraw { request });
        }
        let mut each = World::new();
        each.table = world.table.clone();
        let is_process = |frame: &FrameState| matches!(frame.owner, Owner::Process(_));
        let mut outcomes = Vec::new();
        for frame in world.table.frames().filter(|frame| is_process(frame)) {
            outcomes.extend(each.apply(Change::End { frame: frame.id }));
        }
        for hold in world.table.holds() {
            if world.table.frame(hold.frame).is_some_and(is_process) {
                let release = Release::Hold { token: hold.token, forced: false };
                outcomes.extend(each.apply(Change::Release(release)));
            }
        }
        outcomes.extend(gone(&mut each));
        prop_assert_eq!(released(&outcomes), released(&gone(&mut world)));
        // Ending the frames one by one takes longer by the clock.
        let whenever = |mut state: Snapshot| {
            state.globals.past_leases.iter_mut().for_each(|past| past.at = UnixMillis(0));
            state.globals.past_leases.make_contiguous().sort_by_key(|past| past.token);
            state.globals.revision = Revision(0);
            state
        };
        prop_assert_eq!(whenever(each.table.snapshot()), whenever(world.table.snapshot()));
    }

    #[test]
    fn rule_06_every_step_among_hosts_is_right_by_the_letter_and_replays(
        steps in prop::collection::vec(step(), 1..40)
    ) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Op(op) => run(&mut world, *op),
                Step::On(host) => {
                    world.host = host;
                    join(&mut world, host);
                }
                Step::Adopt(old) => {
                    let new = if old == HERE { NEXT } else { HERE };
                    world.apply(Change::HostAdopt { old, new });
                }
                Step::Era(may_lack) => {
                    let (number, floor) = (world.table.globals().era + 1, Token(0));
                    world.apply(Change::Era { number, may_lack, floor });
                }
                Step::Present(host, told, lost) => {
                    let told = Token(told * world.table.globals().next_token.0 / 3);
                    let (bound, ttl_ms) = (told, 1);
                    let floor = Token(0);
                    world.apply(Change::Present { host, told, bound, lost, ttl_ms, floor });
                }
                Step::TtlPassed => {
                    let from = world.table.recovery().and_then(|recovery| recovery.ttl_from);
                    let from = from.unwrap_or(Revision(1));
                    world.apply(Change::TtlPassed { from });
                }
                Step::Gone(host) => {
                    let by = if host == HERE { NEXT } else { HERE };
                    let kept: Vec<RequestId> = world.table.holds()
                        .filter(|hold| world.table.frame(hold.frame).is_some_and(|f| f.host == by))
                        // A spare yields to a waiter that now fits.
                        .filter(|hold| !hold.asked.over_nodes.as_ref().is_some_and(|it| it.spare))
                        .map(|hold| hold.request)
                        .collect();
                    world.apply(Change::HostGone { host, by });
                    for frame in world.table.frames_of_host(host).collect::<Vec<_>>() {
                        // Only as the outer frame of a frame on another host, which no daemon ever
                        // makes.
                        prop_assert!(world.table.frames().any(|f| f.parent == Some(frame)));
                        prop_assert_eq!(world.table.holds_in(frame).count(), 0);
                        prop_assert_eq!(world.table.waiters_in(frame).count(), 0);
                    }
                    prop_assert!(kept.iter().all(|id| world.table.hold_of(*id).is_some()));
                }
            }
        }
    }
}
