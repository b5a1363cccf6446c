//! Closing a connection cancels its requests, and releases a grant that the client has not read.

use serde_json::json;

use crate::wire::daemon::Daemon;
use crate::wire::peer::{Idler, call, mutex, mutex_for, try_mutex};

#[test]
fn closing_the_connection_withdraws_a_pending_request() {
    let daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let mut closed = daemon.connect();
    closed.send("Acquire", mutex(2, "a"));
    let mut half = daemon.connect();
    half.send("Acquire", mutex(3, "a"));
    let mut stays = daemon.connect();
    stays.send("Acquire", mutex(4, "a"));
    daemon.until_use("a", 1, 3);
    drop(closed);
    daemon.until_use("a", 1, 2);
    half.hang_up();
    daemon.until_use("a", 1, 1);
    assert_eq!(half.reply(), None);
    drop(holder);
    stays.returned("Acquire");
}

#[test]
fn calls_sent_before_the_connection_closes_are_answered_and_acquire_nothing() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    let mut bytes = call("Resize", json!({ "key": "gpu", "slots": 2 }), json!({}));
    bytes.extend(call("Status", json!({}), json!({})));
    peer.raw(&bytes).unwrap();
    peer.hang_up();
    peer.returned("Resize");
    assert_eq!(peer.returned("Status")["keys"][0]["key"], "gpu");
    assert_eq!(peer.reply(), None);

    let mut peer = daemon.connect();
    let mut bytes = call("Status", json!({}), json!({ "more": true }));
    bytes.extend(call("Status", json!({}), json!({})));
    peer.raw(&bytes).unwrap();
    peer.hang_up();
    peer.progress();
    peer.returned("Status");
    assert_eq!(peer.reply(), None, "a closed connection watches nothing");

    let mut peer = daemon.connect();
    peer.send("Acquire", mutex(1, "a"));
    drop(peer);
    daemon.until_use("a", 0, 0);
}

#[test]
fn a_grant_that_the_client_did_not_read_is_released() {
    let daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(2, "a"));
    daemon.until_use("a", 1, 1);
    drop(holder);
    // The grant is in the waiter's receive buffer. The waiter closes without reading it, but its
    // process lives on.
    daemon.until_use("a", 1, 0);
    drop(waiter);
    daemon.until_use("a", 0, 0);
}

#[test]
fn a_grant_that_the_client_read_outlives_its_connection() {
    let daemon = Daemon::start();
    let mut holder = daemon.connect();
    holder.call("Acquire", mutex(1, "a"));
    drop(holder);
    let mut other = daemon.connect();
    other.send("Acquire", try_mutex(2, "b"));
    other.returned("Acquire");
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn a_client_that_becomes_its_command_gets_the_grant_and_then_a_closed_connection() {
    let daemon = Daemon::start();
    let becoming = |tag, key: &str| {
        let mut parameters = mutex(tag, key);
        parameters["wrapper"] = "exec".into();
        parameters
    };
    let mut peer = daemon.connect();
    peer.call("Acquire", becoming(1, "a"));
    assert_eq!(peer.reply(), None, "its connection is closed");
    drop(peer);
    // A client that does not read the grant still holds the lock until its process ends.
    let mut peer = daemon.connect();
    peer.send("Acquire", becoming(2, "b"));
    daemon.until_use("b", 1, 0);
    drop(peer);
    let mut other = daemon.connect();
    other.call("Acquire", try_mutex(3, "c"));
    assert_eq!((daemon.use_of("a"), daemon.use_of("b")), ((1, 0), (1, 0)));
    // A client that asks again with the same tag, as after a lost connection, gets the same grant.
    daemon.connect().call("Acquire", becoming(2, "b"));
    // The same for a client that had to wait.
    let holder = daemon.hold(4, "d");
    let mut waiter = daemon.connect();
    waiter.send("Acquire", becoming(5, "d"));
    daemon.until_use("d", 1, 1);
    drop(holder);
    waiter.returned("Acquire");
    assert_eq!(waiter.reply(), None);
    assert_eq!(daemon.use_of("d"), (1, 0));
    // The daemon serves the calls that arrived with the first one, although it closes the
    // connection.
    let mut bytes = call("Acquire", becoming(6, "e"), json!({}));
    bytes.extend(call("Release", json!({ "key": "e" }), json!({})));
    let mut peer = daemon.connect();
    peer.raw(&bytes).unwrap();
    peer.returned("Acquire");
    peer.returned("Release");
    peer.call("Status", json!({}));
    assert_eq!(daemon.use_of("e"), (0, 0));
}

#[test]
fn a_provisional_grant_is_released_unless_the_client_confirms_it() {
    let daemon = Daemon::start();
    let mut idler = Idler::start();
    let mut asker = daemon.connect();
    asker.send_with("Acquire", mutex_for(1, "a"), &idler.pidfd());
    asker.returned("Acquire");
    assert_eq!(daemon.use_of("a"), (1, 0));
    drop(asker);
    daemon.until_use("a", 0, 0);

    let mut asker = daemon.connect();
    asker.send_with("Acquire", mutex_for(2, "a"), &idler.pidfd());
    asker.returned("Acquire");
    let tag = json!({ "tag": format!("{:032x}", 2) });
    asker.call("Confirm", tag.clone());
    asker.call("Confirm", tag);
    drop(asker);
    let mut other = daemon.connect();
    other.send("Acquire", try_mutex(3, "a"));
    assert_eq!(other.error().1["holders"][0]["pid"], idler.pid());
    // The lock belongs to the process and ends with it.
    idler.kill();
    other.send("Acquire", try_mutex(4, "a"));
    other.returned("Acquire");
}

#[test]
fn an_owner_that_ends_before_the_grant_gets_none() {
    let daemon = Daemon::start();
    let _holder = daemon.hold(1, "a");
    let mut idler = Idler::start();
    let mut asker = daemon.connect();
    asker.send_with("Acquire", mutex_for(2, "a"), &idler.pidfd());
    daemon.until_use("a", 1, 1);
    let pidfd = idler.pidfd();
    idler.kill();
    assert_eq!(asker.error().0, "OwnerGone");
    daemon.until_use("a", 1, 0);
    // The connection still works although the process is gone.
    asker.send_with("Acquire", mutex_for(3, "b"), &pidfd);
    assert_eq!(asker.error().0, "OwnerGone");
    asker.call("Status", json!({}));
}

#[test]
fn a_wait_that_times_out_is_refused_with_the_holders() {
    let daemon = Daemon::start();
    let _holder = daemon.hold(1, "a");
    let mut waiter = daemon.connect();
    let mut parameters = mutex(2, "a");
    parameters["wait_ms"] = 60.into();
    waiter.send("Acquire", parameters);
    let (name, parameters) = waiter.error();
    assert_eq!((name.as_str(), &parameters["reason"]), ("Refused", &json!("timeout")));
    assert_eq!(parameters["message"], "the wait for `a` timed out: 1 of 1 slots held");
    assert_eq!(parameters["holders"][0]["command"], "peer 1");
    assert_eq!(daemon.use_of("a"), (1, 0));
    waiter.call("Status", json!({}));
}

#[test]
fn a_pidfd_of_nothing_that_can_own_is_refused() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    let init = canal::sys::pidfd::Pidfd::open(1).unwrap();
    peer.send_with("Acquire", mutex_for(1, "a"), &init);
    assert_eq!(peer.error().0, "Denied");
    peer.send("Acquire", mutex_for(2, "a"));
    assert_eq!(peer.error().0, "BadRequest");
    assert_eq!(daemon.use_of("a"), (0, 0));
}

#[test]
fn junk_after_a_provisional_grant_releases_it() {
    let daemon = Daemon::start();
    let idler = Idler::start();
    let mut asker = daemon.connect();
    asker.send_with("Acquire", mutex_for(1, "a"), &idler.pidfd());
    asker.returned("Acquire");
    asker.raw(b"junk\0").unwrap();
    assert_eq!(asker.error().0, "Malformed");
    assert_eq!(asker.reply(), None);
    daemon.until_use("a", 0, 0);
}
