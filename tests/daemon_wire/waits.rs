//! Who waits for whom.

use canal::protocol::Waits;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::peer::{Idler, Peer, mutex_for};

/// Has another process wait for a key.
#[track_caller]
fn wait_for(daemon: &Daemon, tag: u128, key: &str) -> (Idler, Peer) {
    let (held, waiting) = daemon.use_of(key);
    let idler = Idler::start();
    let mut peer = daemon.connect();
    peer.send_with("Acquire", mutex_for(tag, key), &idler.pidfd());
    daemon.until_use(key, held, waiting + 1);
    (idler, peer)
}

#[track_caller]
fn waits(daemon: &Daemon, method: &str, parameters: Value) -> Waits {
    serde_json::from_value(daemon.connect().call(method, parameters)).unwrap()
}

#[test]
fn who_waits_is_told_with_key_and_reason() {
    let daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let (first, _first) = wait_for(&daemon, 2, "a");
    let (second, _second) = wait_for(&daemon, 3, "a");
    let told = waits(&daemon, "Why", json!({ "pid": second.pid() }));
    assert_eq!(told.waits[0].waiter.pid, second.pid());
    assert_eq!((told.waits[0].key.as_str(), told.left_out), ("a", 0));
    assert_eq!(told.waits[0].reason, "1 of 1 slot is held");
    let session = told.waits[0].waiter.session.clone();
    assert_eq!(waits(&daemon, "Why", json!({ "session": session })), told);

    assert!(waits(&daemon, "Why", json!({ "pid": holder.pid() })).waits.is_empty());
    let all = waits(&daemon, "Graph", json!({}));
    let pids: Vec<_> = all.waits.iter().map(|wait| wait.waiter.pid).collect();
    assert_eq!(pids, [first.pid(), second.pid()]);
}

#[test]
fn of_whom_nothing_is_known_is_an_error_that_says_so() {
    let daemon = Daemon::start();
    let idler = Idler::start();
    let mut peer = daemon.connect();
    for (query, words) in [
        (json!({ "pid": idler.pid() }), "holds nothing and waits for nothing"),
        (json!({ "session": "s5" }), "session s5 holds nothing"),
        (json!({ "session": "5" }), "no session"),
        (json!({}), "exactly one"),
        (json!({ "pid": 1, "session": "s1" }), "exactly one"),
    ] {
        peer.send("Why", query);
        let (name, failure) = peer.error();
        assert_eq!(name, "BadRequest");
        assert!(failure["message"].as_str().unwrap().contains(words), "{failure}");
    }
    assert!(waits(&daemon, "Graph", json!({})).waits.is_empty());
}
