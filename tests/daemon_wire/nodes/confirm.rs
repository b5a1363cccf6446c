//! Confirming a part: the token, the lease, and what outlives what.

use serde_json::json;

use super::{
    COLLECT, CONFIRM_AT, LONG_MS, confirm, failed, forget_the_journal, hex, node, part, take, with,
};
use crate::wire::daemon::Daemon;
use crate::wire::peer::{mutex, try_mutex};

#[test]
fn a_confirmed_part_has_its_token_and_the_next_is_larger_over_restart_and_reboot() {
    let mut daemon = node();
    let mut peer = daemon.connect();
    let token = peer.call(COLLECT, part(&daemon, 1, "a"))["token"].as_u64().unwrap();
    // Another node assigned a much larger one.
    let given = token + 1_000_000;
    for _ in 0..2 {
        assert_eq!(peer.call(CONFIRM_AT, confirm(1, given)), json!({ "token": given }));
    }
    let holder = daemon.key("a").unwrap().holders.remove(0);
    assert_eq!(holder.token, given);
    assert!(!holder.over_nodes.unwrap().collecting);
    assert!(holder.lease.unwrap().left_ms > Some(LONG_MS / 2));
    let next = |tag| daemon.connect().call("Acquire", mutex(tag, "b"))["token"].as_u64().unwrap();
    assert_eq!(next(2), given + 1);
    drop(peer);
    let mut before = given + 1;
    for (tag, rebooted) in [(3, false), (4, true)] {
        daemon.kill();
        if rebooted {
            forget_the_journal(&daemon);
        }
        daemon.run(|_| {});
        let mut peer = daemon.connect();
        let renewed = peer.call("Renew", json!({ "handle": hex(1) }));
        assert_eq!((&renewed["token"], &renewed["keys"]), (&json!(given), &json!(["a"])));
        peer.send("Acquire", try_mutex(9, "a"));
        assert_eq!(peer.error().0, "Refused");
        // Confirming it again with the same token returns the same answer.
        assert_eq!(peer.call(CONFIRM_AT, confirm(1, given)), json!({ "token": given }));
        let token = peer.call("Acquire", mutex(tag, "c"))["token"].as_u64().unwrap();
        assert!(token > before, "{token} after {before}");
        before = token;
    }
    daemon.connect().call("Release", json!({ "handle": hex(1) }));
    daemon.kill();
    forget_the_journal(&daemon);
    daemon.run(|_| {});
    assert!(daemon.key("a").is_none(), "what was released does not come back");
}

#[test]
fn the_floor_of_the_tokens_outlives_the_lease_and_a_reboot() {
    let mut daemon = node();
    let mut peer = daemon.connect();
    let token = peer.call(COLLECT, part(&daemon, 1, "a"))["token"].as_u64().unwrap();
    let given = token + (1 << 40);
    peer.call(CONFIRM_AT, confirm(1, given));
    peer.call("Release", json!({ "handle": hex(1) }));
    daemon.kill();
    forget_the_journal(&daemon);
    daemon.run(|_| {});
    let next = daemon.connect().call("Acquire", mutex(2, "a"))["token"].as_u64().unwrap();
    assert!(next > given, "{next} after {given}");
}

#[test]
fn a_token_that_is_taken_too_small_or_too_large_is_refused_and_the_part_stays() {
    let daemon = node();
    let mut peer = daemon.connect();
    let token = peer.call(COLLECT, part(&daemon, 1, "a"))["token"].as_u64().unwrap();
    let other = peer.call("Acquire", mutex(2, "b"))["token"].as_u64().unwrap();
    let (name, said) = failed(&mut peer, CONFIRM_AT, confirm(1, other));
    assert_eq!((name.as_str(), &said["least"]), ("TokenTaken", &json!(other + 1)));
    for wrong in [0, token - 1, (1 << 52) + 1, u64::MAX >> 1] {
        assert_eq!(failed(&mut peer, CONFIRM_AT, confirm(1, wrong)).0, "BadRequest", "{wrong}");
    }
    // A wrong handle.
    let wrong = json!({ "tag": hex(1), "handle": hex(2), "token": token });
    assert_eq!(failed(&mut peer, CONFIRM_AT, wrong).0, "Gone");
    assert!(daemon.key("a").unwrap().holders[0].over_nodes.as_ref().unwrap().collecting);
    peer.call(CONFIRM_AT, confirm(1, other + 1));
    // The part of `a` depended on this connection only until it was confirmed.
    peer.call(COLLECT, part(&daemon, 3, "c"));
    drop(peer);
    daemon.until_use("c", 0, 0);
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn no_token_is_so_large_that_later_parts_have_none() {
    let daemon = node();
    let mut peer = daemon.connect();
    let token = peer.call(COLLECT, part(&daemon, 1, "a"))["token"].as_u64().unwrap();
    // The whole range of tokens, and two years by the clock.
    for ahead in [(1 << 52) - token, 2 * 366 * 24 * 60 * 60 * (1 << 20)] {
        let (name, said) = failed(&mut peer, CONFIRM_AT, confirm(1, token + ahead));
        assert_eq!(name, "BadRequest");
        let message = said["message"].as_str().unwrap();
        assert!(message.contains("more than a year ahead of this machine's clock"), "{message}");
        assert!(said["hint"].as_str().unwrap().contains("`date`"), "{said}");
    }
    // The clocks of two nodes may differ by several months.
    let given = token + 300 * 24 * 60 * 60 * (1 << 20);
    assert_eq!(peer.call(CONFIRM_AT, confirm(1, given)), json!({ "token": given }));
    // Afterwards this node's own tokens are large enough, and each repetition succeeds.
    assert_eq!(peer.call(CONFIRM_AT, confirm(1, given)), json!({ "token": given }));
    assert!(take(&daemon, 2, "b") > given);
}

#[test]
fn a_confirmation_on_another_connection_counts_and_brings_a_note() {
    let daemon = node();
    let mut peer = daemon.connect();
    let asked = with(part(&daemon, 1, "a"), "note", "first".into());
    let token = peer.call(COLLECT, asked)["token"].as_u64().unwrap();
    let with_note = with(confirm(1, token + 1), "note", "http://web1\u{1b}:8080".into());
    daemon.connect().call(CONFIRM_AT, with_note);
    peer.call(COLLECT, part(&daemon, 3, "c"));
    drop(peer);
    daemon.until_use("c", 0, 0);
    assert_eq!(daemon.use_of("a"), (1, 0));
    let holder = daemon.key("a").unwrap().holders.remove(0);
    assert_eq!((holder.token, holder.note.as_deref()), (token + 1, Some("http://web1?:8080")));
}

#[test]
fn a_confirmed_part_ends_when_it_is_not_renewed() {
    let daemon = node();
    let mut peer = daemon.connect();
    let asked = with(part(&daemon, 1, "a"), "ttl_ms", 1000.into());
    let token = peer.call(COLLECT, asked)["token"].as_u64().unwrap();
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(2, "a"));
    daemon.until_use("a", 1, 1);
    peer.call(CONFIRM_AT, confirm(1, token + 1));
    assert!(waiter.returned("Acquire")["token"].as_u64() > Some(token + 1));
    assert_eq!(failed(&mut peer, CONFIRM_AT, confirm(1, token + 1)).0, "Gone");
    let (name, said) = failed(&mut peer, "Renew", json!({ "handle": hex(1) }));
    assert_eq!((name.as_str(), &said["reason"]), ("LeaseLost", &json!("expired")));
}

#[test]
fn a_part_is_confirmed_only_if_its_lease_is_durable() {
    let daemon = node();
    let (leases, elsewhere) = (daemon.path("leases.log"), daemon.path("elsewhere"));
    let mut peer = daemon.connect();
    let token = peer.call(COLLECT, part(&daemon, 1, "a"))["token"].as_u64().unwrap();
    // A directory replaces the file, so the daemon cannot write it again.
    std::fs::rename(&leases, &elsewhere).unwrap();
    std::fs::create_dir(&leases).unwrap();
    assert_eq!(failed(&mut peer, CONFIRM_AT, confirm(1, token + 1)).0, "DiskFull");
    daemon.until_use("a", 0, 0);
    std::fs::remove_dir(&leases).unwrap();
    take(&daemon, 2, "a");
    let stored = String::from_utf8_lossy(&std::fs::read(&leases).unwrap()).into_owned();
    assert!(stored.contains("\"key\":\"a\"") && stored.contains("\"over_nodes\""), "{stored}");
}

#[test]
fn a_renewal_with_a_shorter_ttl_takes_nothing_from_what_others_were_promised() {
    let mut daemon = node();
    take(&daemon, 1, "a");
    let renew = |daemon: &Daemon, ttl_ms: u64| {
        let renewal = json!({ "handle": hex(1), "ttl_ms": ttl_ms });
        daemon.connect().call("Renew", renewal)["lease"]["ttl_ms"].as_u64().unwrap()
    };
    let longer_ms = LONG_MS + 10_000;
    for (asked_ms, kept_ms) in [(10_000, LONG_MS), (longer_ms, longer_ms), (LONG_MS, longer_ms)] {
        assert_eq!(renew(&daemon, asked_ms), kept_ms, "the answer says the TTL in force");
    }
    daemon.kill();
    daemon.run(|_| {});
    let left_ms = daemon.key("a").unwrap().holders[0].lease.as_ref().unwrap().left_ms.unwrap();
    assert!(left_ms > LONG_MS, "{left_ms}");
}
