//! Leases across restarts of the daemon, and while it is stopped.

use canal::sys::process::{RunState, run_state};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{LONG_MS, SHORT_MS, by_handle, handle, lease, lost, take};
use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{mutex, try_mutex};

#[test]
fn a_killed_daemon_loses_no_lease_and_gives_each_its_whole_ttl() {
    let mut daemon = Daemon::start();
    let grant = take(&daemon, 1, "a", LONG_MS);
    take(&daemon, 2, "b", LONG_MS);
    let left = |daemon: &Daemon, key| daemon.key(key).unwrap().holders[0].lease.clone().unwrap();
    wait_until("some of the TTL is over", || {
        left(&daemon, "b").left_ms.unwrap() < LONG_MS - SHORT_MS
    });
    daemon.connect().call("Renew", by_handle(1));
    let killed = std::time::Instant::now();
    daemon.kill();
    daemon.run(|_| {});
    // The whole TTL is left, minus the time of the restart.
    let now = left(&daemon, "b").left_ms.unwrap();
    let took = u64::try_from(killed.elapsed().as_millis()).unwrap() + 1;
    assert!(now + took >= LONG_MS, "{now} ms are left, {took} ms after the kill");
    let mut peer = daemon.connect();
    let renewed = peer.call("Renew", by_handle(1));
    assert_eq!((&renewed["token"], &renewed["lease"]["renewals"]), (&grant["token"], &json!(2)));
    peer.send("Acquire", try_mutex(9, "a"));
    assert_eq!(peer.error().0, "Refused");
    // The next daemon also knows how a lease ended.
    peer.call("Release", by_handle(1));
    drop(peer);
    take(&daemon, 3, "c", 2 * SHORT_MS);
    daemon.kill();
    daemon.run(|_| {});
    lost(&mut daemon.connect(), "Renew", 1, "released");
    daemon.until_use("c", 0, 0);
}

#[test]
fn a_lease_that_waited_over_a_restart_goes_on_waiting() {
    let mut daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let mut asker = daemon.connect();
    asker.send("Acquire", lease(2, "a", LONG_MS));
    daemon.until_use("a", 1, 1);
    daemon.kill();
    daemon.run(|_| {});
    let mut asker = daemon.connect();
    asker.send("Acquire", lease(2, "a", LONG_MS));
    wait_until("it waits again", || {
        daemon.key("a").is_some_and(|key| key.waiters[0].reason == "1 of 1 slots held")
    });
    drop(holder);
    assert_eq!(asker.returned("Acquire")["lease"]["ttl_ms"], LONG_MS);
}

#[test]
fn a_stopped_daemon_reads_pending_renewals_before_it_expires_leases() {
    assert!((0..7).any(|doubled| reads_pending(SHORT_MS << doubled)), "too slow, whatever the TTL");
}

/// Whether the daemon was stopped in time. Checks that it then read the renewal.
fn reads_pending(ttl_ms: u64) -> bool {
    let daemon = Daemon::start();
    let asked = std::time::Instant::now();
    take(&daemon, 1, "renewed", ttl_ms);
    take(&daemon, 2, "forgotten", ttl_ms);
    let mut known = daemon.connect();
    known.call("Renew", by_handle(2));
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(3, "forgotten"));
    daemon.until_use("forgotten", 1, 1);
    daemon.signal(Signal::SIGSTOP);
    wait_until("it is stopped", || run_state(daemon.pid()) == RunState::Stopped);
    if asked.elapsed().as_millis() >= u128::from(ttl_ms) {
        daemon.signal(Signal::SIGCONT);
        return false;
    }
    // The daemon has not accepted this connection yet.
    let mut newcomer = daemon.connect();
    newcomer.send("Renew", by_handle(1));
    let begun = std::time::Instant::now();
    wait_until("their time is over", || begun.elapsed().as_millis() > 2 * u128::from(ttl_ms));
    assert!(newcomer.is_silent() && waiter.is_silent());
    daemon.signal(Signal::SIGCONT);
    assert_eq!(newcomer.returned("Renew")["lease"]["renewals"], 1);
    waiter.returned("Acquire");
    lost(&mut known, "Renew", 2, "expired");
    assert_eq!(daemon.use_of("renewed"), (1, 0));
    true
}

#[test]
fn leases_come_back_without_the_journal_with_token_slots_and_a_whole_ttl() {
    let mut daemon = Daemon::start();
    let item = |tag: u128, item: Value| {
        let mut parameters = lease(tag, "", LONG_MS);
        parameters["items"] = json!([item, { "key": format!("w{tag}"), "mode": "write" }]);
        parameters
    };
    let mut asker = daemon.connect();
    let mut grants = Vec::new();
    for tag in 1..=3 {
        grants.push(asker.call("Acquire", item(tag, json!({ "key": "gpu", "slots": 4 }))));
        asker.call("Confirm", json!({ "tag": handle(tag) }));
    }
    // Release the middle one, so that the slots are not simply the first ones.
    asker.call("Release", by_handle(2));
    let idler = daemon.hold(9, "a-process");
    let before = daemon.key("gpu").unwrap();
    drop(asker);
    daemon.kill();
    // Simulate a reboot: /tmp is empty, but the state directory is not.
    for name in ["journal.0", "journal.1"] {
        std::fs::remove_file(daemon.path(name)).unwrap();
    }
    daemon.run(|_| {});
    assert!(daemon.key("a-process").is_none(), "processes do not come back");
    drop(idler);
    let after = daemon.key("gpu").unwrap();
    let slots = |key: &canal::protocol::KeyInfo| {
        key.holders.iter().map(|it| (it.token, it.slots.clone())).collect::<Vec<_>>()
    };
    assert_eq!(slots(&after), slots(&before));
    assert_eq!((after.held, after.view.as_deref()), (2, Some("4")));
    assert!(after.holders.iter().all(|it| it.lease.as_ref().unwrap().left_ms > Some(LONG_MS / 2)));
    let mut peer = daemon.connect();
    assert_eq!(peer.call("Renew", by_handle(3))["token"], grants[2]["token"]);
    // New grants have larger tokens, and get the free slot in the middle.
    let newcomer = peer.call(
        "Acquire",
        json!({
            "tag": handle(4), "items": [{ "key": "gpu", "slots": 4 }], "command": "x",
        }),
    );
    assert_eq!(newcomer["keys"][0]["slots"][0]["slot"], 1);
    assert!(newcomer["token"].as_u64() > grants[2]["token"].as_u64());
    peer.call("Release", by_handle(1));
    peer.call("Release", by_handle(3));
    // A released lease does not return.
    daemon.kill();
    for name in ["journal.0", "journal.1"] {
        std::fs::remove_file(daemon.path(name)).unwrap();
    }
    daemon.run(|_| {});
    assert!(daemon.status().keys.is_empty());
}

#[test]
fn a_lease_is_granted_only_after_it_is_durable() {
    let daemon = Daemon::start();
    take(&daemon, 1, "a", LONG_MS);
    let (leases, elsewhere) = (daemon.path("leases.log"), daemon.path("elsewhere"));
    let stored = || String::from_utf8_lossy(&std::fs::read(&leases).unwrap()).into_owned();
    assert!(stored().contains("\"key\":\"a\""));
    // A directory replaces the file, so the daemon cannot write it again.
    std::fs::rename(&leases, &elsewhere).unwrap();
    std::fs::create_dir(&leases).unwrap();
    let mut peer = daemon.connect();
    peer.send("Acquire", lease(2, "b", LONG_MS));
    let (name, parameters) = peer.error();
    assert_eq!(name, "DiskFull");
    assert!(parameters["message"].as_str().unwrap().contains("leases.log"), "{parameters}");
    assert!(daemon.key("b").is_none());
    // Holds of processes do not need that file.
    peer.call("Acquire", mutex(3, "c"));
    std::fs::remove_dir(&leases).unwrap();
    take(&daemon, 4, "b", LONG_MS);
    let stored = stored();
    assert!(["a", "b"].iter().all(|key| stored.contains(&format!("\"key\":\"{key}\""))));
}

#[test]
fn leases_requested_at_once_are_made_durable_in_one_append() {
    let daemon = Daemon::start();
    take(&daemon, 1, "a", LONG_MS);
    let appends = || {
        let stored = std::fs::read(daemon.path("leases.log")).unwrap();
        stored.iter().filter(|byte| **byte == b'\n').count()
    };
    let before = appends();
    let mut askers: Vec<_> = (0..8).map(|_| daemon.connect()).collect();
    for asker in &mut askers {
        asker.call("Status", json!({ "key": "a" }));
    }
    daemon.signal(Signal::SIGSTOP);
    wait_until("it is stopped", || run_state(daemon.pid()) == RunState::Stopped);
    for (n, asker) in askers.iter_mut().enumerate() {
        asker.send("Acquire", lease(10 + n as u128, &format!("k{n}"), LONG_MS));
        // The reply to a later call follows it.
        asker.send("Status", json!({ "key": format!("k{n}") }));
    }
    daemon.signal(Signal::SIGCONT);
    for asker in &mut askers {
        assert_eq!(asker.returned("Acquire")["lease"]["ttl_ms"], LONG_MS);
        assert_eq!(asker.returned("Status")["keys"][0]["held"], 1);
    }
    assert_eq!(appends() - before, 1);
}
