//! Leases over the wire: renewed and given back by their handle, ended when they are not.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::daemon::{Daemon, wait_until};
use crate::peer::{Idler, Peer, mutex, mutex_for, try_mutex};

/// Longer than any test takes.
const LONG_MS: u64 = 600_000;
/// The shortest that there is.
const SHORT_MS: u64 = 1000;

pub(crate) fn handle(n: u128) -> String {
    format!("{n:032x}")
}

/// The parameters of an `Acquire` of a mutex as a lease; its handle has the number of its tag.
fn lease(tag: u128, key: &str, ttl_ms: u64) -> Value {
    let mut parameters = mutex(tag, key);
    parameters["lease"] = json!({ "handle": handle(tag), "ttl_ms": ttl_ms });
    parameters
}

/// Takes a lease, and confirms it.
#[track_caller]
fn take(daemon: &Daemon, tag: u128, key: &str, ttl_ms: u64) -> Value {
    let mut asker = daemon.connect();
    let grant = asker.call("Acquire", lease(tag, key, ttl_ms));
    asker.call("Confirm", json!({ "tag": handle(tag) }));
    grant
}

fn by_handle(n: u128) -> Value {
    json!({ "handle": handle(n) })
}

#[track_caller]
fn lost(peer: &mut Peer, method: &str, n: u128, reason: &str) -> Value {
    peer.send(method, by_handle(n));
    let (name, parameters) = peer.error();
    assert_eq!((name.as_str(), parameters["reason"].as_str()), ("LeaseLost", Some(reason)));
    parameters
}

#[test]
fn a_lease_outlives_its_asker_and_is_renewed_and_released_by_its_handle() {
    let daemon = Daemon::start();
    let grant = take(&daemon, 1, "a", LONG_MS);
    assert_eq!(grant["owner"], json!({ "pid": 0, "command": "peer 1" }));
    assert_eq!(grant["lease"]["ttl_ms"], LONG_MS);
    assert!(grant.get("handle").is_none(), "the daemon never says a handle");
    let shown = daemon.key("a").unwrap();
    assert_eq!((shown.held, shown.holders[0].pid), (1, 0));
    assert!(shown.holders[0].lease.as_ref().unwrap().left_ms > Some(LONG_MS / 2));
    let mut peer = daemon.connect();
    for renewals in [1, 2] {
        let renewed = peer.call("Renew", by_handle(1));
        assert_eq!(renewed["keys"], json!(["a"]));
        assert_eq!((&renewed["token"], &renewed["session"]), (&grant["token"], &grant["session"]));
        assert_eq!(renewed["lease"]["renewals"], renewals);
    }
    let released = peer.call("Release", by_handle(1));
    assert_eq!(released["released"][0]["token"], grant["token"]);
    assert_eq!(released["released"][0]["holder"]["lease"]["left_ms"], Value::Null);
    assert!(daemon.key("a").is_none());
    for method in ["Renew", "Release"] {
        let what = lost(&mut peer, method, 1, "released");
        assert_eq!((&what["lost"]["key"], &what["lost"]["token"]), (&json!("a"), &grant["token"]));
    }
}

#[test]
fn a_lease_that_is_not_renewed_ends_and_the_next_in_the_queue_has_its_lock() {
    let daemon = Daemon::start();
    let first = take(&daemon, 1, "a", SHORT_MS);
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(2, "a"));
    let next = waiter.returned("Acquire");
    assert!(next["token"].as_u64() > first["token"].as_u64());
    let what = lost(&mut daemon.connect(), "Renew", 1, "expired");
    assert_eq!(what["lost"]["ttl_ms"], SHORT_MS);
    assert_eq!(what["holders"][0]["token"], next["token"]);
    assert!(what["message"].as_str().unwrap().contains("not renewed for 1 s"), "{what}");
}

#[test]
fn a_lease_that_is_renewed_lives_on() {
    let daemon = Daemon::start();
    take(&daemon, 1, "a", 2 * SHORT_MS);
    let begun = std::time::Instant::now();
    let mut peer = daemon.connect();
    let mut renewals = 0;
    while begun.elapsed().as_millis() < 5 * u128::from(SHORT_MS) {
        let renewed = peer.call("Renew", by_handle(1));
        renewals += 1;
        assert_eq!(renewed["lease"]["renewals"], renewals);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(daemon.use_of("a"), (1, 0));
    // And ends as soon as it is not.
    daemon.until_use("a", 0, 0);
}

#[test]
fn an_unknown_handle_is_nobodys_lease_and_changes_nothing() {
    let daemon = Daemon::start();
    take(&daemon, 1, "a", LONG_MS);
    let mut peer = daemon.connect();
    for method in ["Renew", "Release"] {
        assert!(lost(&mut peer, method, 2, "unknown").get("lost").is_none());
        // What looks like the name under which the table knows it is no handle either.
        let name = json!({ "handle": "a".repeat(32) });
        peer.send(method, name);
        assert_eq!(peer.error().0, "LeaseLost");
        peer.send(method, json!({ "handle": "short" }));
        assert_eq!(peer.error().0, "InvalidParameter");
    }
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn a_lease_is_not_its_askers_to_give_back_but_by_force_or_handle() {
    let daemon = Daemon::start();
    let mut asker = daemon.connect();
    let grant = asker.call("Acquire", lease(1, "a", LONG_MS));
    asker.call("Confirm", json!({ "tag": handle(1) }));
    for parameters in [json!({ "key": "a" }), json!({ "all": true })] {
        asker.send("Release", parameters);
        assert_eq!(asker.error().0, "NotHeld");
    }
    asker.call("Release", json!({ "token": grant["token"] }));
    lost(&mut asker, "Renew", 1, "forced");
}

#[test]
fn a_lease_that_was_not_confirmed_goes_back_with_its_asker() {
    let daemon = Daemon::start();
    let mut asker = daemon.connect();
    asker.call("Acquire", lease(1, "a", LONG_MS));
    assert_eq!(daemon.use_of("a"), (1, 0));
    drop(asker);
    daemon.until_use("a", 0, 0);
    lost(&mut daemon.connect(), "Renew", 1, "withdrawn");
}

#[test]
fn a_lease_waits_like_anybody_and_is_withdrawn_with_its_asker() {
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
    // It waits, and is nothing yet that could be renewed.
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
fn what_makes_no_sense_as_a_lease_is_refused() {
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
    let idler = Idler::start();
    let mut for_a_process = mutex_for(1, "a");
    for_a_process["lease"] = json!({ "handle": handle(1), "ttl_ms": LONG_MS });
    peer.send_with("Acquire", for_a_process, &idler.pidfd());
    assert_eq!(peer.error().0, "BadRequest");
    take(&daemon, 1, "a", SHORT_MS);
    // One handle names one lease.
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

#[test]
fn no_file_and_no_answer_of_the_daemon_has_the_handle() {
    let mut daemon = Daemon::folder();
    daemon.run(|command| {
        command.arg("-vv");
    });
    let secret = 0x0123_4567_89ab_cdef_u128 << 64 | 0xfedc_ba98_7654_3210;
    take(&daemon, secret, "a", LONG_MS);
    let mut peer = daemon.connect();
    peer.call("Renew", by_handle(secret));
    let bare = |n: u128| {
        let bytes = n.to_be_bytes();
        [bytes.to_vec(), bytes.iter().rev().copied().collect(), handle(n).into_bytes()]
    };
    let mut answers = peer.call("Status", json!({})).to_string();
    answers += &peer.call("Graph", json!({})).to_string();
    peer.call("Release", by_handle(secret));
    daemon.kill();
    let mut seen = answers.into_bytes();
    seen.extend(daemon.said().into_bytes());
    for name in ["journal.0", "journal.1", "state.json"] {
        let bytes = std::fs::read(daemon.path(name)).unwrap();
        // The tag is the same number here, and no secret.
        seen.extend(bytes);
    }
    let tag = format!("\"tag\":\"{}\"", handle(secret)).into_bytes();
    let text: Vec<u8> = without(&seen, &tag);
    for form in bare(secret) {
        let found = text.windows(form.len()).any(|window| window == form);
        assert!(!found, "the handle is in what the daemon wrote");
    }
}

fn without(bytes: &[u8], part: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(part) {
            at += part.len();
        } else {
            kept.push(bytes[at]);
            at += 1;
        }
    }
    kept
}

#[test]
fn a_killed_daemon_loses_no_lease_and_gives_each_its_whole_ttl() {
    let mut daemon = Daemon::start();
    let grant = take(&daemon, 1, "a", LONG_MS);
    take(&daemon, 2, "b", 4 * SHORT_MS);
    let left = |daemon: &Daemon, key| daemon.key(key).unwrap().holders[0].lease.clone().unwrap();
    wait_until("half of the TTL is over", || left(&daemon, "b").left_ms.unwrap() < 2 * SHORT_MS);
    daemon.connect().call("Renew", by_handle(1));
    daemon.kill();
    daemon.run(|_| {});
    // The whole TTL is left, but for what it took to start.
    let now = left(&daemon, "b");
    assert!(now.left_ms.unwrap() > 2 * SHORT_MS, "{now:?}");
    let mut peer = daemon.connect();
    let renewed = peer.call("Renew", by_handle(1));
    assert_eq!((&renewed["token"], &renewed["lease"]["renewals"]), (&grant["token"], &json!(2)));
    peer.send("Acquire", try_mutex(9, "a"));
    assert_eq!(peer.error().0, "Refused");
    // How one ended is known to the next daemon, too.
    peer.call("Release", by_handle(1));
    drop(peer);
    daemon.kill();
    daemon.run(|_| {});
    lost(&mut daemon.connect(), "Renew", 1, "released");
    daemon.until_use("b", 0, 0);
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
        daemon.key("a").is_some_and(|key| key.waiters[0].reason == "1 of 1 slot is held")
    });
    drop(holder);
    assert_eq!(asker.returned("Acquire")["lease"]["ttl_ms"], LONG_MS);
}

#[test]
fn a_daemon_that_was_stopped_for_longer_takes_in_the_renewals_that_came_meanwhile() {
    let daemon = Daemon::start();
    take(&daemon, 1, "renewed", SHORT_MS);
    take(&daemon, 2, "forgotten", SHORT_MS);
    let mut known = daemon.connect();
    known.call("Renew", by_handle(2));
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(3, "forgotten"));
    daemon.until_use("forgotten", 1, 1);
    daemon.signal(Signal::SIGSTOP);
    // On a connection that it has not taken in yet.
    let mut newcomer = daemon.connect();
    newcomer.send("Renew", by_handle(1));
    let begun = std::time::Instant::now();
    wait_until("their time is over", || begun.elapsed().as_millis() > 2 * u128::from(SHORT_MS));
    assert!(newcomer.is_silent() && waiter.is_silent());
    daemon.signal(Signal::SIGCONT);
    assert_eq!(newcomer.returned("Renew")["lease"]["renewals"], 1);
    waiter.returned("Acquire");
    lost(&mut known, "Renew", 2, "expired");
    assert_eq!(daemon.use_of("renewed"), (1, 0));
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
    // The one in the middle goes, so that the slots are not just the first ones.
    asker.call("Release", by_handle(2));
    let idler = daemon.hold(9, "a-process");
    let before = daemon.key("gpu").unwrap();
    drop(asker);
    daemon.kill();
    // What a reboot leaves: /tmp is empty, the state directory is not.
    for name in ["journal.0", "journal.1"] {
        std::fs::remove_file(daemon.path(name)).unwrap();
    }
    daemon.run(|_| {});
    assert!(daemon.key("a-process").is_none(), "processes do not come back");
    drop(idler);
    let after = daemon.key("gpu").unwrap();
    let slots = |key: &canal::protocol::KeyShown| {
        key.holders.iter().map(|it| (it.token, it.slots.clone())).collect::<Vec<_>>()
    };
    assert_eq!(slots(&after), slots(&before));
    assert_eq!((after.held, after.view.as_deref()), (2, Some("4")));
    assert!(after.holders.iter().all(|it| it.lease.as_ref().unwrap().left_ms > Some(LONG_MS / 2)));
    let mut peer = daemon.connect();
    assert_eq!(peer.call("Renew", by_handle(3))["token"], grants[2]["token"]);
    // What is granted from now on has larger tokens, and the slot between.
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
    // What was given back does not come back, either.
    daemon.kill();
    for name in ["journal.0", "journal.1"] {
        std::fs::remove_file(daemon.path(name)).unwrap();
    }
    daemon.run(|_| {});
    assert!(daemon.status().keys.is_empty());
}

#[test]
fn a_lease_is_durable_before_it_is_told_and_not_told_if_it_cannot_be() {
    let daemon = Daemon::start();
    take(&daemon, 1, "a", LONG_MS);
    let state = std::fs::read_to_string(daemon.path("state.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(state["leases"]["holds"][0]["items"][0]["key"], "a");
    // A directory in the way of the file that is written beside.
    let beside = daemon.path(&format!("state.json.new-{}", daemon.pid()));
    std::fs::create_dir(&beside).unwrap();
    let mut peer = daemon.connect();
    peer.send("Acquire", lease(2, "b", LONG_MS));
    assert_eq!(peer.error().0, "DiskFull");
    assert!(daemon.key("b").is_none());
    // Processes need no such file.
    peer.call("Acquire", mutex(3, "c"));
    std::fs::remove_dir(&beside).unwrap();
    take(&daemon, 4, "b", LONG_MS);
}
