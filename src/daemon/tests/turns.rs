//! What is decided in which turn.

use std::os::fd::AsFd;
use std::time::Duration;

use serde_json::json;

use super::super::conns::batch::Batch;
use super::{Holder, World, call, granted, hex, mutex, try_mutex, until_true};
use crate::core::Token;

#[test]
fn what_is_sent_in_a_turn_is_decided_in_the_next_one_with_the_deaths_before_it() {
    let mut world = World::new();
    let holder = world.hold(1, "a");
    world.lease(2, "b");
    world.server.leases.all_over();
    let batch = Batch::take(&mut world.server);
    // A shell that has waited for the holder asks for its lock, while the turn goes on.
    holder.end();
    let mut peer = world.connect();
    peer.send(&call("Acquire", &try_mutex(3, "a")), &[]);
    world.server.carry_out_batch(batch).unwrap();
    assert_eq!(peer.reply(), None);
    assert_eq!(world.server.leases.next_end(), None, "the lease has ended in that turn");
    world.turn();
    granted(&peer.reply().unwrap());
}

#[test]
fn a_hold_whose_last_descendant_is_gone_is_over_for_who_asks_then() {
    let mut world = World::new();
    let owner = Holder::start();
    let mut asker = world.connect();
    let mut parameters = mutex(1, "a");
    parameters["owner_fd"] = 0.into();
    parameters["with_children"] = true.into();
    asker.send(&call("Acquire", &parameters), &[owner.pidfd().as_fd()]);
    world.turn();
    let grant = asker.reply().unwrap();
    let token = Token(grant["parameters"]["token"].as_u64().unwrap());
    world.call(&mut asker, "Confirm", &json!({ "tag": hex(1) }));
    owner.end();
    world.turn();
    // Somebody connects, and before the daemon looks who it is the descendant ends.
    let _other = world.connect();
    assert!(world.server.conns.wait(Some(Duration::ZERO)));
    asker.fds.clear();
    until_true("processes that other tests start have closed it too", || {
        !world.server.children.has_writers(token)
    });
    let mut peer = world.connect();
    peer.send(&call("Acquire", &try_mutex(2, "a")), &[]);
    world.turn();
    granted(&peer.reply().unwrap());
}

/// A daemon that was stopped cannot tell when a renewal was sent that it finds. As long as it has
/// not ended the lease, nobody else had the lock: then the renewal counts.
#[test]
fn a_renewal_that_is_there_before_the_lease_was_ended_counts_also_after_its_ttl() {
    let mut world = World::new();
    world.lease(1, "a");
    let mut waiter = world.connect();
    waiter.send(&call("Acquire", &mutex(2, "a")), &[]);
    world.turn();
    // From here to the next turn the daemon may have been stopped for any time.
    let mut client = world.connect();
    client.send(&call("Renew", &json!({ "handle": hex(1) })), &[]);
    world.server.leases.all_over();
    world.turn();
    assert_eq!(client.reply().unwrap()["parameters"]["lease"]["renewals"], 1);
    assert_eq!(waiter.reply(), None);
    assert!(world.server.leases.next_end().is_some(), "and lives for another TTL");
}

#[test]
fn a_renewal_that_comes_after_the_lease_was_ended_is_lost_though_the_daemon_was_stopped() {
    let mut world = World::new();
    world.lease(1, "a");
    let mut waiter = world.connect();
    waiter.send(&call("Acquire", &mutex(2, "a")), &[]);
    world.turn();
    world.server.leases.all_over();
    world.server.turn().unwrap();
    granted(&waiter.reply().unwrap());
    let mut client = world.connect();
    let renewed = world.call(&mut client, "Renew", &json!({ "handle": hex(1) }));
    assert_eq!(renewed["error"], "io.canal.Lock.LeaseLost");
    assert_eq!(renewed["parameters"]["reason"], "expired");
}

/// The daemon was woken, and stopped before it looked why.
#[test]
fn a_renewal_that_came_since_the_daemon_was_woken_is_read_before_its_lease_ends() {
    let mut world = World::new();
    world.lease(1, "a");
    let mut client = world.connect();
    world.turn();
    let _other = world.connect();
    assert!(world.server.conns.wait(Some(Duration::ZERO)));
    client.send(&call("Renew", &json!({ "handle": hex(1) })), &[]);
    world.server.leases.all_over();
    world.server.turn().unwrap();
    assert_eq!(client.reply().unwrap()["parameters"]["lease"]["renewals"], 1);
}
