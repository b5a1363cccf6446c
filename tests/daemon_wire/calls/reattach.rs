//! A client that asks again with the same tag continues its request, with the same daemon and with
//! the next one.

use canal::protocol::Status;
use serde_json::{Value, json};

use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Idler, mutex, mutex_for};

#[test]
fn the_same_tag_gets_the_same_grant() {
    let daemon = Daemon::start();
    let first = daemon.connect().call("Acquire", mutex(1, "a"));
    let again = daemon.connect().call("Acquire", mutex(1, "a"));
    assert_eq!(first, again);
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn the_same_tag_of_another_process_is_refused() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    peer.call("Acquire", mutex(1, "a"));
    let idler = Idler::start();
    peer.send_with("Acquire", mutex_for(1, "a"), &idler.pidfd());
    assert_eq!(peer.error().0, "BadRequest");
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn a_waiter_that_asks_on_another_connection_keeps_its_place() {
    let daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let mut first = daemon.connect();
    first.send("Acquire", mutex(2, "a"));
    daemon.until_use("a", 1, 1);
    let mut second = daemon.connect();
    second.send("Acquire", mutex(2, "a"));
    assert_eq!(first.error().0, "BadRequest");
    drop(first);
    assert_eq!(daemon.use_of("a"), (1, 1));
    drop(holder);
    second.returned("Acquire");
}

#[test]
fn a_grant_requested_again_survives_the_end_of_the_first_connection() {
    let daemon = Daemon::start();
    let idler = Idler::start();
    let mut first = daemon.connect();
    first.send_with("Acquire", mutex_for(1, "a"), &idler.pidfd());
    first.returned("Acquire");
    let mut second = daemon.connect();
    second.send_with("Acquire", mutex_for(1, "a"), &idler.pidfd());
    second.returned("Acquire");
    drop(first);
    second.call("Confirm", json!({ "tag": format!("{:032x}", 1) }));
    drop(second);
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn holds_and_waiters_outlive_a_killed_daemon() {
    let mut daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let token = daemon.key("a").unwrap().holders[0].token;
    let mut first = daemon.connect();
    first.send("Acquire", mutex(2, "a"));
    daemon.until_use("a", 1, 1);
    let mut second = daemon.connect();
    let idler = Idler::start();
    second.send_with("Acquire", mutex_for(3, "a"), &idler.pidfd());
    daemon.until_use("a", 1, 2);

    daemon.kill();
    assert_eq!((first.reply(), second.reply()), (None, None));
    daemon.run(|_| {});
    let key = daemon.key("a").unwrap();
    assert_eq!((key.held, key.waiting, key.holders[0].token), (1, 2, token));
    // The second client returns first, but its place is still behind the first client.
    let mut second = daemon.connect();
    second.send_with("Acquire", mutex_for(3, "a"), &idler.pidfd());
    let mut first = daemon.connect();
    first.send("Acquire", mutex(2, "a"));
    drop(holder);
    let token_first = first.returned("Acquire")["token"].as_u64().unwrap();
    assert!(token_first > token);
    assert!(second.is_silent());
    first.call("Release", json!({ "key": "a" }));
    assert!(second.returned("Acquire")["token"].as_u64().unwrap() > token_first);
}

#[test]
fn a_waiter_that_does_not_come_back_blocks_the_queue_only_briefly() {
    let mut daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let mut lost = daemon.connect();
    lost.send("Acquire", mutex(2, "a"));
    daemon.until_use("a", 1, 1);
    let mut waits = daemon.connect();
    let idler = Idler::start();
    waits.send_with("Acquire", mutex_for(3, "a"), &idler.pidfd());
    daemon.until_use("a", 1, 2);
    daemon.kill();
    daemon.run(|_| {});
    let mut waits = daemon.connect();
    waits.send_with("Acquire", mutex_for(3, "a"), &idler.pidfd());
    drop(holder);
    daemon.until_use("a", 0, 2);
    let reason = |status: &Status| status.keys[0].waiters[0].reason.clone();
    assert!(reason(&daemon.status()).contains("has not reconnected"), "{:?}", daemon.status());
    waits.returned("Acquire");
    daemon.until_use("a", 1, 0);
}

#[test]
fn a_provisional_grant_is_kept_for_a_while_after_a_restart() {
    let mut daemon = Daemon::start();
    let (comes_back, stays_away) = (Idler::start(), Idler::start());
    let mut asker = daemon.connect();
    asker.send_with("Acquire", mutex_for(1, "a"), &comes_back.pidfd());
    let token = asker.returned("Acquire")["token"].clone();
    let mut other = daemon.connect();
    other.send_with("Acquire", mutex_for(2, "b"), &stays_away.pidfd());
    other.returned("Acquire");
    daemon.kill();
    drop((asker, other));
    daemon.run(|_| {});
    let mut asker = daemon.connect();
    asker.send_with("Acquire", mutex_for(1, "a"), &comes_back.pidfd());
    assert_eq!(asker.returned("Acquire")["token"], token);
    asker.call("Confirm", json!({ "tag": format!("{:032x}", 1) }));
    drop(asker);
    daemon.until_use("b", 0, 0);
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn a_wait_ends_at_its_time_also_under_the_next_daemon() {
    // Try a longer wait if the machine is too slow to start the next daemon within it.
    assert!((0..7).any(|doubled| waits_on(3000 << doubled)), "too slow, whatever the wait");
}

/// Whether another daemon started within the wait. Checks that the wait then ended on time.
fn waits_on(wait_ms: u64) -> bool {
    let mut daemon = Daemon::start();
    let _holder = daemon.hold(1, "a");
    let mut waiter = daemon.connect();
    let mut parameters = mutex(2, "a");
    parameters["wait_ms"] = wait_ms.into();
    let asked = std::time::Instant::now();
    waiter.send("Acquire", parameters.clone());
    let is_over = || asked.elapsed().as_millis() >= wait_ms.into();
    wait_until("it waits", || daemon.use_of("a") == (1, 1) || is_over());
    daemon.kill();
    daemon.run(|_| {});
    let mut waiter = daemon.connect();
    // The daemon knows the request, so it ignores the new parameters.
    parameters["wait_ms"] = 600_000.into();
    waiter.send("Acquire", parameters);
    if is_over() {
        return false;
    }
    assert_eq!(waiter.error().1["reason"], "timeout");
    assert!(is_over());
    true
}

#[test]
fn stopping_the_daemon_is_answered_and_loses_nothing() {
    let mut daemon = Daemon::start();
    let _holder = daemon.hold(1, "a");
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(2, "a"));
    daemon.until_use("a", 1, 1);
    let stopping = daemon.connect().call("Stop", Value::Null);
    assert_eq!(stopping["pid"], daemon.pid());
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(waiter.reply(), None, "a waiter asks the next daemon");
    assert!(!daemon.socket().exists());
    daemon.run(|_| {});
    wait_until("all is as before", || daemon.use_of("a") == (1, 1));
}

#[test]
fn a_stopped_waiter_has_its_full_time_to_come_back_once_it_runs() {
    let mut daemon = Daemon::start();
    let _holder = daemon.hold(1, "a");
    let idler = Idler::start();
    let stops = |signal| nix::sys::signal::kill(idler.as_pid(), signal).unwrap();
    stops(nix::sys::signal::Signal::SIGSTOP);
    let mut asker = daemon.connect();
    asker.send_with("Acquire", mutex_for(2, "a"), &idler.pidfd());
    daemon.until_use("a", 1, 1);
    daemon.kill();
    daemon.run(|_| {});
    let reason = |daemon: &Daemon| daemon.key("a").unwrap().waiters[0].reason.clone();
    wait_until("it is seen to be stopped", || reason(&daemon).contains("stopped"));
    stops(nix::sys::signal::Signal::SIGCONT);
    // It returns in time.
    let mut asker = daemon.connect();
    asker.send_with("Acquire", mutex_for(2, "a"), &idler.pidfd());
    wait_until("it waits again", || reason(&daemon) == "1 of 1 slots held");
    // The next time it does not return.
    stops(nix::sys::signal::Signal::SIGSTOP);
    daemon.kill();
    daemon.run(|_| {});
    wait_until("it is seen to be stopped", || reason(&daemon).contains("stopped"));
    stops(nix::sys::signal::Signal::SIGCONT);
    daemon.until_use("a", 1, 0);
}
