//! Everything that a client can do with the handle of a lease, and that no other client learns it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{LONG_MS, SHORT_MS, by_handle, handle, lease, lost, take};
use crate::wire::daemon::Daemon;
use crate::wire::peer::mutex;

#[test]
fn a_lease_outlives_its_connection_and_is_renewed_and_released_by_its_handle() {
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
fn a_lease_that_is_not_renewed_ends_and_the_next_waiter_is_granted() {
    let daemon = Daemon::start();
    let first = take(&daemon, 1, "a", SHORT_MS);
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(2, "a"));
    let next = waiter.returned("Acquire");
    assert!(next["token"].as_u64() > first["token"].as_u64());
    let what = lost(&mut daemon.connect(), "Renew", 1, "expired");
    assert_eq!(what["lost"]["ttl_ms"], SHORT_MS);
    assert_eq!(what["holders"][0]["token"], next["token"]);
    assert!(what["message"].as_str().unwrap().contains("not renewed for 1s"), "{what}");
}

#[test]
fn a_lease_that_is_renewed_lives_on() {
    // Try a longer TTL if the machine is too slow to renew within it.
    assert!((1..8).any(|doubled| lives_on(SHORT_MS << doubled)), "too slow, whatever the TTL");
}

/// Whether it was renewed in time. Checks that it then lived on.
fn lives_on(ttl_ms: u64) -> bool {
    let daemon = Daemon::start();
    let (begun, mut before) = (Instant::now(), Instant::now());
    take(&daemon, 1, "a", ttl_ms);
    let mut peer = daemon.connect();
    let mut renewals = 0;
    let ttl = Duration::from_millis(ttl_ms);
    while begun.elapsed() < ttl * 5 / 2 {
        let asked = Instant::now();
        peer.send("Renew", by_handle(1));
        let reply = peer.reply().expect("a reply");
        if before.elapsed() > ttl {
            return false;
        }
        before = asked;
        renewals += 1;
        assert_eq!(reply["parameters"]["lease"]["renewals"], renewals, "{reply}");
        std::thread::sleep(ttl / 100);
    }
    // It ends after the renewals stop.
    daemon.until_use("a", 0, 0);
    true
}

#[test]
fn an_unknown_handle_is_an_error_and_changes_nothing() {
    let daemon = Daemon::start();
    take(&daemon, 1, "a", LONG_MS);
    let mut peer = daemon.connect();
    for method in ["Renew", "Release"] {
        assert!(lost(&mut peer, method, 2, "unknown").get("lost").is_none());
        // The name of the lease in the table looks like a handle, but is none.
        let name = json!({ "handle": "a".repeat(32) });
        peer.send(method, name);
        assert_eq!(peer.error().0, "LeaseLost");
        peer.send(method, json!({ "handle": "short" }));
        assert_eq!(peer.error().0, "InvalidParameter");
    }
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn a_lease_is_released_only_by_handle_or_by_force() {
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
fn no_file_and_no_reply_of_the_daemon_contains_the_handle() {
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
    seen.extend(daemon.log().into_bytes());
    for name in ["journal.0", "journal.1", "state.json"] {
        let bytes = std::fs::read(daemon.path(name)).unwrap();
        // Here the tag is the same number as the handle, and it is not secret.
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
