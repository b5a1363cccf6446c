//! Leases: they live by renewal, end by an entry, and are remembered for a while.

use crate::state::leases::PAST_LEASES_MAX;
use crate::tests::world::{World, by, grants, lease, owner, victims};
use crate::*;

fn renew(world: &mut World, name: u32) -> Vec<Outcome> {
    renew_at(world, name, HostId(0))
}

fn renew_at(world: &mut World, name: u32, host: HostId) -> Vec<Outcome> {
    world.apply(Change::Renew { lease: LeaseId(name.into()), host, note: None, ttl_ms: None })
}

fn expire(world: &mut World, frame: FrameId, renewal: u64) -> Vec<RequestId> {
    grants(&world.apply(Change::Expire { frame, renewal }))
}

fn past(world: &World, name: u32) -> Option<(LeaseEnd, Token)> {
    world.table.past_lease(LeaseId(name.into())).map(|past| (past.why, past.token))
}

#[test]
fn a_lease_that_is_not_renewed_is_taken_over_by_the_next_waiter() {
    let mut world = World::new();
    let first = world.take(lease(1).slots("a", 1));
    let next = world.wait(by(2).slots("a", 1));
    let later = world.wait(lease(3).slots("a", 1));
    assert_eq!(expire(&mut world, first.frame, 0), [next]);
    assert!(world.table.hold_of(next).unwrap().token > first.token);
    assert!(world.waits(later));
    assert_eq!(past(&world, 1), Some((LeaseEnd::Expired, first.token)));
    assert_eq!(renew(&mut world, 1), [Outcome::LeaseGone]);
}

#[test]
fn an_expiry_that_a_renewal_came_before_is_void() {
    let mut world = World::new();
    let frame = world.take(lease(1).slots("a", 1)).frame;
    assert_eq!(renew(&mut world, 1), [Outcome::Renewed { frame, renewal: 1 }]);
    assert_eq!(renew(&mut world, 1), [Outcome::Renewed { frame, renewal: 2 }]);
    for renewal in [0, 1, 3] {
        assert_eq!(expire(&mut world, frame, renewal), []);
        assert_eq!(world.held("a"), 1);
    }
    expire(&mut world, frame, 2);
    assert_eq!(world.held("a"), 0);
    // The same once more, now that nothing is left of it.
    expire(&mut world, frame, 2);
    assert!(world.table.snapshot().frames.is_empty());
}

#[test]
fn a_renewal_replaces_the_note_removes_it_or_leaves_it() {
    let mut world = World::new();
    let token = world.take(lease(1).slots("a", 1)).token;
    for (renewed, shown) in [
        (None, None),
        (Some("build 7"), Some("build 7")),
        (None, Some("build 7")),
        (Some("build 8"), Some("build 8")),
        (Some(""), None),
    ] {
        let (lease, host, note) = (LeaseId(1), HostId(0), renewed.map(Into::into));
        world.apply(Change::Renew { lease, host, note, ttl_ms: None });
        assert_eq!(world.table.hold(token).unwrap().asked.note.as_deref(), shown);
    }
}

#[test]
fn a_renewal_can_change_the_ttl_from_then_on() {
    let mut world = World::new();
    let granted = world.take(lease(1).slots("a", 1));
    let ttls = |world: &World| {
        let frame = world.table.frame(granted.frame).unwrap().lease.unwrap().ttl_ms;
        (frame, world.table.hold(granted.token).unwrap().asked.ttl_ms)
    };
    for (renewed, now) in [(Some(5_000), 5_000), (None, 5_000), (Some(3_600_000), 3_600_000)] {
        let (lease, host, note) = (LeaseId(1), HostId(0), None);
        world.apply(Change::Renew { lease, host, note, ttl_ms: renewed });
        assert_eq!(ttls(&world), (now, Some(now)));
    }
    world.apply(Change::Release(Release::All { frame: granted.frame }));
    assert_eq!(world.table.past_lease(LeaseId(1)).unwrap().ttl_ms, 3_600_000);
}

#[test]
fn a_renewal_that_an_earlier_version_wrote_leaves_the_ttl() {
    let written = r#"{"renew":{"lease":"00000000000000000000000000000001","host":0}}"#;
    let renew: Change = serde_json::from_str(written).unwrap();
    let (lease, host) = (LeaseId(1), HostId(0));
    assert_eq!(renew, Change::Renew { lease, host, note: None, ttl_ms: None });
    assert_eq!(serde_json::to_string(&renew).unwrap(), written);
}

#[test]
fn only_a_held_lease_can_be_renewed_or_expire() {
    let mut world = World::new();
    assert_eq!(renew(&mut world, 1), [Outcome::LeaseGone], "nobody asked for it");
    let holder = world.take(by(9).slots("a", 1));
    let waiter = world.wait(lease(1).slots("a", 1));
    let frame = world.table.waiter(waiter).unwrap().frame;
    assert_eq!(renew(&mut world, 1), [Outcome::LeaseGone], "it waits");
    expire(&mut world, frame, 0);
    assert!(world.waits(waiter));
    // A process is not a lease.
    expire(&mut world, holder.frame, 0);
    assert_eq!(world.held("a"), 1);
    assert_eq!(world.die(9), [waiter]);
    assert_eq!(renew(&mut world, 1), [Outcome::Renewed { frame, renewal: 1 }]);
}

#[test]
fn a_renewal_by_another_host_makes_the_lease_that_hosts() {
    let mut world = World::new();
    let frame = world.take(lease(1).slots("a", 1)).frame;
    renew_at(&mut world, 1, HostId(7));
    let state = world.table.frame(frame).unwrap();
    assert_eq!((state.host, state.lease.unwrap().renewals), (HostId(7), 1));
    assert_eq!(state.lease.unwrap().renewed, Some(UnixMillis(1_001)));
    // It is still the same lease, from whichever host.
    assert_eq!(world.table.lease(LeaseId(1)), Some(frame));
    assert_eq!(renew_at(&mut world, 1, HostId(3)).len(), 1);
    expire(&mut world, frame, 2);
    assert_eq!(world.table.lease(LeaseId(1)), None);
}

#[test]
fn how_a_lease_ended_is_remembered() {
    let mut world = World::new();
    let released = world.take(lease(1).slots("a", 4).write("w"));
    world.apply(Change::Release(Release::All { frame: released.frame }));
    let forced = world.take(lease(2).slots("a", 4));
    world.apply(Change::Release(Release::Hold { token: forced.token, forced: true }));
    let mut wish = lease(3).slots("a", 4);
    wish.provisional = true;
    let withdrawn = world.take(wish);
    world.apply(Change::Withdraw { request: withdrawn.request });
    assert_eq!(past(&world, 1), Some((LeaseEnd::Released, released.token)));
    assert_eq!(past(&world, 2), Some((LeaseEnd::Forced, forced.token)));
    assert_eq!(past(&world, 3), Some((LeaseEnd::Withdrawn, withdrawn.token)));
    let first = world.table.past_lease(LeaseId(1)).unwrap();
    assert_eq!((first.key.as_str(), first.more_keys, first.ttl_ms), ("a", 1, 60_000));
    // A lease that never held anything was never lost.
    world.take(by(9).slots("a", 1).now().slots("b", 1));
    let waiter = world.wait(lease(4).write("b"));
    world.apply(Change::Withdraw { request: waiter });
    assert_eq!(past(&world, 4), None);
}

#[test]
fn only_the_last_leases_are_remembered() {
    let mut world = World::new();
    let count = u32::try_from(PAST_LEASES_MAX).unwrap() + 1;
    for name in 1..=count {
        let frame = world.take(lease(name).slots("a", 1)).frame;
        expire(&mut world, frame, 0);
    }
    assert_eq!(past(&world, 1), None);
    assert!(past(&world, 2).is_some() && past(&world, count).is_some());
    assert_eq!(world.table.snapshot().globals.past_leases.len(), PAST_LEASES_MAX);
}

#[test]
fn a_handle_names_one_lease_with_one_request() {
    let mut world = World::new();
    world.take(lease(1).slots("a", 1));
    assert_eq!(world.refused(lease(1).slots("b", 1)), Refusal::Duplicate);
    world.wait(lease(2).slots("a", 1));
    assert_eq!(world.refused(lease(2).slots("b", 1)), Refusal::Duplicate);
}

#[test]
fn a_lease_that_holds_is_going_on_and_makes_no_deadlock() {
    let mut world = World::new();
    let frame = world.take(lease(1).write("a")).frame;
    world.take(by(2).write("b"));
    // All wait for the lease. If it also waited, that would be a ring.
    let two = world.wait(by(2).write("a"));
    let three = world.wait(lease(3).write("b"));
    let four = world.wait(lease(4).write("a").write("b"));
    assert_eq!(victims(&world), []);
    assert_eq!(expire(&mut world, frame, 0), [two]);
    assert_eq!(world.die(2), [three]);
    let third = world.table.lease(LeaseId(3)).unwrap();
    assert_eq!(expire(&mut world, third, 0), [four]);
}

#[test]
fn leases_and_the_memory_of_them_survive_a_snapshot() {
    let mut world = World::new();
    let gone = world.take(lease(1).slots("a", 1)).frame;
    expire(&mut world, gone, 0);
    world.take(lease(2).slots("a", 1));
    renew(&mut world, 2);
    let text = serde_json::to_string(&world.table.snapshot()).unwrap();
    let snapshot: Snapshot = serde_json::from_str(&text).unwrap();
    let table = Table::restore(&snapshot).unwrap();
    assert_eq!(table.snapshot(), world.table.snapshot());
    assert!(table.past_lease(LeaseId(1)).is_some());
    let frame = table.lease(LeaseId(2)).unwrap();
    assert_eq!(table.frame(frame).unwrap().lease.unwrap().renewals, 1);
}

#[test]
fn exactly_leases_have_a_ttl() {
    let mut world = World::new();
    let request = |ttl_ms, owner| {
        let Change::Request(request) = by(1).slots("a", 1).change(Tag(99)) else { unreachable!() };
        Change::Request(Request { ttl_ms, owner, ..(*request).clone() }.into())
    };
    let process = owner(1);
    for wrong in [request(Some(1), process), request(None, Owner::Lease(LeaseId(1)))] {
        let outcomes = world.apply(wrong);
        let why = Refusal::Invalid { item: 0 };
        assert!(matches!(&outcomes[..], [Outcome::Refused { why: it, .. }] if *it == why));
    }
}
