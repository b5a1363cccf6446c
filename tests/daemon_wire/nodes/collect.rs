//! A part that is not confirmed yet.

use std::time::Duration;

use serde_json::json;

use super::{COLLECT, CONFIRM_AT, confirm, failed, hex, id_of, node, part, take, with};
use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Peer, mutex, try_mutex};

fn stored(daemon: &Daemon) -> String {
    String::from_utf8_lossy(&std::fs::read(daemon.path("leases.log")).unwrap()).into_owned()
}

#[test]
fn a_part_that_is_not_confirmed_ends_with_its_connection_and_is_on_no_disk() {
    let daemon = node();
    let mut peer = daemon.connect();
    let grant = peer.call(COLLECT, part(&daemon, 1, "a"));
    assert_eq!(grant["lease"]["left_ms"], json!(null), "its time has not begun");
    assert!(!stored(&daemon).contains("\"key\":\"a\""));
    let shown = daemon.key("a").unwrap().holders.remove(0).over_nodes.unwrap();
    assert!(shown.collecting && !shown.spare);
    assert_eq!((shown.need, shown.held, shown.nodes.len()), (2, None, 2));
    assert_eq!(shown.run.to_string(), hex(1001));
    // It needs a token to be confirmed.
    let (name, _) = failed(&mut daemon.connect(), "Confirm", json!({ "tag": hex(1) }));
    assert_eq!(name, "BadRequest");
    // It cannot be renewed, so the owner of its handle must not rely on it.
    let (name, _) = failed(&mut daemon.connect(), "Renew", json!({ "handle": hex(1) }));
    assert_eq!(name, "LeaseLost");
    assert_eq!(daemon.key("a").unwrap().holders[0].lease.as_ref().unwrap().left_ms, None);
    drop(peer);
    daemon.until_use("a", 0, 0);
    assert_eq!(failed(&mut daemon.connect(), CONFIRM_AT, confirm(1, 1 << 51)).0, "Gone");
}

#[test]
fn a_part_waits_in_the_queue_tells_its_progress_and_shows_the_whole() {
    let daemon = node();
    let holder = daemon.hold(9, "a");
    let mut peer = daemon.connect();
    peer.send_more(COLLECT, part(&daemon, 1, "a"));
    assert_eq!(peer.progress()["position"], 1);
    let report =
        json!({ "handle": hex(1), "need": 2, "held": 1, "waits_for": ["web3", "a\u{1b}[2J\nb"] });
    daemon.connect().call("io.canal.Nodes.Report", report);
    let shown = daemon.key("a").unwrap().waiters.remove(0).over_nodes.unwrap();
    assert_eq!((shown.held, shown.collecting), (Some(1), true));
    assert_eq!(shown.waits_for, ["web3", "a?[2J b"]);
    drop(holder);
    loop {
        let reply = peer.reply().unwrap();
        if reply.get("continues").is_none() {
            assert!(reply["parameters"]["token"].is_u64(), "{reply}");
            break;
        }
    }
    let shown = daemon.key("a").unwrap().holders.remove(0).over_nodes.unwrap();
    assert_eq!(shown.held, Some(1));
    drop(peer);
    daemon.until_use("a", 0, 0);
    let gone = json!({ "handle": hex(1), "need": 2, "held": 1 });
    assert_eq!(failed(&mut daemon.connect(), "io.canal.Nodes.Report", gone).0, "Gone");
}

#[test]
fn a_part_that_is_not_confirmed_ends_with_the_daemon() {
    let mut daemon = node();
    let mut peer = daemon.connect();
    let token = peer.call(COLLECT, part(&daemon, 1, "a"))["token"].as_u64().unwrap();
    daemon.kill();
    daemon.run(|_| {});
    assert_eq!(daemon.use_of("a"), (0, 0));
    let mut peer = daemon.connect();
    assert_eq!(failed(&mut peer, CONFIRM_AT, confirm(1, token + 1)).0, "Gone");
    // A client can ask for it again with the same tag and handle.
    let again = peer.call(COLLECT, part(&daemon, 1, "a"))["token"].as_u64().unwrap();
    assert!(again > token);
    peer.call(CONFIRM_AT, confirm(1, again + 1));
}

/// Longer than the tick of the kernel's clock, which orders connections by age.
const NEWER_AFTER: Duration = Duration::from_millis(30);

#[test]
fn a_part_that_is_asked_for_again_depends_on_the_newest_connection() {
    let daemon = node();
    let holder = daemon.hold(9, "a");
    let mut old = daemon.connect();
    old.send_more(COLLECT, part(&daemon, 1, "a"));
    old.progress();
    std::thread::sleep(NEWER_AFTER);
    let mut new = daemon.connect();
    new.send_more(COLLECT, part(&daemon, 1, "a"));
    new.progress();
    assert_eq!(old.error().0, "Gone");
    // A call on the old connection arrives after its client has opened a newer one.
    assert_eq!(failed(&mut old, COLLECT, part(&daemon, 1, "a")).0, "Gone");
    let handle = json!({ "handle": hex(1) });
    assert_eq!(failed(&mut old, "Release", handle.clone()).0, "Gone");
    drop(old);
    assert_eq!(daemon.use_of("a"), (1, 1));
    drop(holder);
    let token = |peer: &mut Peer| loop {
        let reply = peer.reply().unwrap();
        if reply.get("continues").is_none() {
            return reply["parameters"]["token"].as_u64();
        }
    };
    let granted = token(&mut new);
    assert!(granted.is_some());
    std::thread::sleep(NEWER_AFTER);
    let mut newest = daemon.connect();
    newest.send_more(COLLECT, part(&daemon, 1, "a"));
    assert_eq!(token(&mut newest), granted);
    assert_eq!(failed(&mut new, COLLECT, part(&daemon, 1, "a")).0, "Gone");
    assert_eq!(failed(&mut new, "Release", handle).0, "Gone");
    drop(new);
    daemon.connect().call("io.canal.Nodes.Identify", json!({}));
    assert_eq!(daemon.use_of("a"), (1, 0));
    drop(newest);
    daemon.until_use("a", 0, 0);
}

#[test]
fn a_part_that_waits_is_withdrawn_by_its_handle() {
    let daemon = node();
    let _holder = daemon.hold(9, "a");
    let mut peer = daemon.connect();
    peer.send_more(COLLECT, part(&daemon, 1, "a"));
    peer.progress();
    let released = daemon.connect().call("Release", json!({ "handle": hex(1) }));
    assert_eq!(released, json!({ "released": [] }));
    assert_eq!(daemon.use_of("a"), (1, 0));
    assert_eq!(peer.error().0, "Fault");
    assert_eq!(failed(&mut peer, "Release", json!({ "handle": hex(1) })).0, "LeaseLost");
}

#[test]
fn a_part_that_is_not_confirmed_ends_when_nothing_is_heard_of_its_client_for_its_ttl() {
    let daemon = node();
    let short = |tag, key| with(part(&daemon, tag, key), "ttl_ms", 3_000.into());
    let (mut silent, mut heard) = (daemon.connect(), daemon.connect());
    silent.call(COLLECT, short(1, "a"));
    let token = heard.call(COLLECT, short(2, "b"))["token"].as_u64().unwrap();
    // Longer than a TTL in total.
    for tag in [3, 4] {
        wait_until("the silent one is closed", || {
            heard.call("io.canal.Nodes.Identify", json!({}));
            silent.was_closed()
        });
        daemon.until_use("a", 0, 0);
        silent = daemon.connect();
        silent.call(COLLECT, short(tag, "a"));
    }
    heard.call(CONFIRM_AT, confirm(2, token + 1));
    assert_eq!(daemon.use_of("b"), (1, 0));
}

#[test]
fn a_spare_gives_way_until_it_is_confirmed() {
    let daemon = node();
    let spare = |tag, key| with(part(&daemon, tag, key), "spare", true.into());
    let mut peer = daemon.connect();
    let token = peer.call(COLLECT, spare(1, "a"))["token"].as_u64().unwrap();
    let mut other = daemon.connect();
    other.call("Acquire", try_mutex(2, "a"));
    assert_eq!(failed(&mut peer, CONFIRM_AT, confirm(1, token + 1)).0, "Gone");
    // It does not wait.
    let (name, said) = failed(&mut peer, COLLECT, spare(3, "a"));
    assert_eq!((name.as_str(), &said["reason"]), ("Refused", &json!("full")));
    let token = peer.call(COLLECT, spare(4, "b"))["token"].as_u64().unwrap();
    peer.call(CONFIRM_AT, confirm(4, token + 1));
    assert!(daemon.key("b").unwrap().holders[0].over_nodes.as_ref().unwrap().spare);
    other.send("Acquire", try_mutex(5, "b"));
    assert_eq!(other.error().0, "Refused");
}

#[test]
fn a_part_under_another_has_the_locks_of_that_one() {
    let daemon = node();
    let outer =
        |tag| with(part(&daemon, tag, "db"), "items", json!([{ "key": "db", "mode": "write" }]));
    let inner = |tag: u128, under: u128| {
        let item = json!([{ "key": "db/x", "mode": "read" }]);
        let asked = with(part(&daemon, tag, "db"), "items", item);
        with(with(asked, "under", hex(under).into()), "wait_ms", 0.into())
    };
    let mut peer = daemon.connect();
    peer.call(COLLECT, inner(2, 1));
    assert_eq!(daemon.key("db/x").unwrap().holders.len(), 1, "a handle of no lease is ignored");
    peer.call("Release", json!({ "handle": hex(2) }));
    let token = peer.call(COLLECT, outer(1))["token"].as_u64().unwrap();
    assert_eq!(failed(&mut peer, COLLECT, inner(2, 1)).0, "Refused", "it is not confirmed");
    peer.call(CONFIRM_AT, confirm(1, token + 1));
    let grant = peer.call(COLLECT, inner(2, 1));
    let sessions = |key: &str| daemon.key(key).unwrap().holders[0].session.clone();
    assert_eq!(sessions("db"), sessions("db/x"));
    // A request from outside the outer frame is refused.
    let mut stranger = inner(3, 1);
    stranger.as_object_mut().unwrap().remove("under");
    assert_eq!(failed(&mut peer, COLLECT, stranger).0, "Refused");
    peer.call(CONFIRM_AT, confirm(2, grant["token"].as_u64().unwrap() + 1));
    // Its client has released the outer one, although the frame remains.
    peer.call("Release", json!({ "handle": hex(1) }));
    let (name, said) = failed(&mut peer, "Renew", json!({ "handle": hex(1) }));
    assert_eq!((name.as_str(), &said["reason"]), ("LeaseLost", &json!("released")));
    peer.call("Release", json!({ "handle": hex(2) }));
    assert!(daemon.status().keys.is_empty());
}

#[test]
fn wrong_requests_are_refused_and_leave_nothing() {
    let daemon = node();
    let mut peer = daemon.connect();
    let own = id_of(&daemon);
    let ask = |name: &str, value| with(part(&daemon, 1, "a"), name, value);
    let many: Vec<String> = (0..65_u128).map(hex).collect();
    for (asked, words) in [
        (ask("nodes", json!([])), "does not name this node"),
        (ask("nodes", json!([hex(1)])), "does not name this node"),
        (ask("nodes", json!([own, own])), "each node once, in ascending order"),
        (ask("nodes", json!([hex(2), hex(1)])), "each node once, in ascending order"),
        (ask("nodes", json!(many)), "at most 64 nodes, not 65"),
        (ask("items", json!([])), ""),
    ] {
        let (name, said) = failed(&mut peer, COLLECT, asked);
        assert_eq!(name, "BadRequest");
        assert!(said["message"].as_str().unwrap().contains(words), "{said}");
    }
    for (name, value) in [
        ("nodes", json!(["x"])),
        ("run", json!("7")),
        ("require", json!("most")),
        ("tag", json!(1)),
    ] {
        assert_eq!(failed(&mut peer, COLLECT, ask(name, value)).0, "InvalidParameter", "{name}");
    }
    // A client must not ask again for a confirmed part.
    take(&daemon, 1, "a");
    assert_eq!(failed(&mut peer, COLLECT, part(&daemon, 1, "a")).0, "BadRequest");
    peer.call("Acquire", mutex(7, "b"));
    assert_eq!(failed(&mut peer, CONFIRM_AT, confirm(7, 1 << 51)).0, "Gone");
    assert_eq!(daemon.use_of("a"), (1, 0));
}
