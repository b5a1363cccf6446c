//! Requests for a lease: repeated, without success, and behind other waiters.

use serde_json::{Value, json};

use super::{LONG_MS, SHORT_MS, by_handle, handle, lease, lost, take};
use crate::wire::daemon::Daemon;
use crate::wire::peer::{Idler, mutex_for};

#[test]
fn a_lease_that_was_not_confirmed_ends_with_its_connection() {
    let daemon = Daemon::start();
    let mut asker = daemon.connect();
    asker.call("Acquire", lease(1, "a", LONG_MS));
    assert_eq!(daemon.use_of("a"), (1, 0));
    drop(asker);
    daemon.until_use("a", 0, 0);
    lost(&mut daemon.connect(), "Renew", 1, "withdrawn");
}

#[test]
fn a_lease_waits_in_the_queue_and_is_withdrawn_with_its_connection() {
    let daemon = Daemon::start();
    let mut holder = daemon.hold(1, "a");
    let mut first = daemon.connect();
    first.send("Acquire", lease(2, "a", LONG_MS));
    daemon.until_use("a", 1, 1);
    let mut second = daemon.connect();
    second.send("Acquire", lease(3, "a", LONG_MS));
    daemon.until_use("a", 1, 2);
    let shown = daemon.key("a").unwrap();
    assert_eq!((shown.waiters[0].pid, shown.waiters[0].command.as_deref()), (0, Some("peer 2")));
    assert_eq!(shown.waiters[0].lease.as_ref().unwrap().left_ms, None);
    // It waits, so it cannot be renewed yet.
    let mut other = daemon.connect();
    for method in ["Renew", "Release"] {
        other.send(method, by_handle(2));
        assert_eq!(other.error().0, "BadRequest");
    }
    drop(first);
    daemon.until_use("a", 1, 1);
    lost(&mut other, "Renew", 2, "unknown");
    holder.kill();
    assert_eq!(second.returned("Acquire")["lease"]["renewals"], 0);
    let mut busy = lease(4, "a", LONG_MS);
    busy["wait_ms"] = 0.into();
    other.send("Acquire", busy);
    let (name, parameters) = other.error();
    assert_eq!((name.as_str(), &parameters["reason"]), ("Refused", &json!("full")));
    assert_eq!(parameters["holders"][0]["lease"]["ttl_ms"], LONG_MS);
}

#[test]
fn a_lease_with_impossible_parameters_is_refused() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    let with = |name: &str, value: Value| {
        let mut parameters = lease(1, "a", LONG_MS);
        parameters[name] = value;
        parameters
    };
    for parameters in [lease(1, "a", SHORT_MS - 1), with("with_children", true.into())] {
        peer.send("Acquire", parameters);
        assert_eq!(peer.error().0, "BadRequest");
    }
    // A lease lives on its renewals, so its first TTL is bounded.
    let most = 30 * 24 * 3600 * 1000;
    peer.send("Acquire", lease(1, "a", most + 1));
    let (name, parameters) = peer.error();
    assert_eq!(name, "BadRequest");
    let message = parameters["message"].as_str().unwrap();
    assert_eq!(
        message,
        "the TTL of a lease can be at most 2592000000 ms (30 days), not 2592000001"
    );
    take(&daemon, 5, "long", most);
    let idler = Idler::start();
    let mut for_a_process = mutex_for(1, "a");
    for_a_process["lease"] = json!({ "handle": handle(1), "ttl_ms": LONG_MS });
    peer.send_with("Acquire", for_a_process, &idler.pidfd());
    assert_eq!(peer.error().0, "BadRequest");
    take(&daemon, 1, "a", SHORT_MS);
    // One handle identifies one lease.
    let mut again = lease(2, "b", LONG_MS);
    again["lease"]["handle"] = handle(1).into();
    peer.send("Acquire", again);
    assert_eq!(peer.error().0, "BadRequest");
    assert!(daemon.key("b").is_none());
}

#[test]
fn the_same_tag_and_handle_get_the_same_lease_and_another_handle_does_not() {
    let daemon = Daemon::start();
    let grant = take(&daemon, 1, "a", LONG_MS);
    let again = daemon.connect().call("Acquire", lease(1, "a", LONG_MS));
    assert_eq!((&again["token"], &again["session"]), (&grant["token"], &grant["session"]));
    let mut stranger = lease(1, "a", LONG_MS);
    stranger["lease"]["handle"] = handle(2).into();
    let mut peer = daemon.connect();
    peer.send("Acquire", stranger);
    assert_eq!(peer.error().0, "BadRequest");
    assert_eq!(daemon.use_of("a"), (1, 0));
}
