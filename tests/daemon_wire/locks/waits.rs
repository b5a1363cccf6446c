//! The wait-for graph: which session waits for which.

use canal::protocol::Waits;
use serde_json::{Value, json};

use crate::daemon_wire::locks::read_write::{ask, give, request, write};
use crate::wire::daemon::Daemon;
use crate::wire::peer::{Idler, Peer, mutex_for};

/// Makes another process wait for a key.
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
fn each_wait_is_reported_with_key_and_reason() {
    let daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let (first, _first) = wait_for(&daemon, 2, "a");
    let (second, _second) = wait_for(&daemon, 3, "a");
    let told = waits(&daemon, "Why", json!({ "pid": second.pid() }));
    assert_eq!(told.waits[0].waiter.pid, second.pid());
    assert_eq!((told.waits[0].key.as_str(), told.left_out), ("a", 0));
    assert_eq!(told.waits[0].reason, "1 of 1 slots held");
    let session = told.waits[0].waiter.session.clone();
    assert_eq!(waits(&daemon, "Why", json!({ "session": session })), told);

    assert!(waits(&daemon, "Why", json!({ "pid": holder.pid() })).waits.is_empty());
    let all = waits(&daemon, "Graph", json!({}));
    let pids: Vec<_> = all.waits.iter().map(|wait| wait.waiter.pid).collect();
    assert_eq!(pids, [first.pid(), second.pid()]);
}

#[test]
fn a_chain_of_waits_is_followed_to_its_end() {
    let daemon = Daemon::start();
    let (last, middle, first) = (Idler::start(), Idler::start(), Idler::start());
    let (stranger, apart) = (Idler::start(), Idler::start());
    give(&daemon, &last, 1, write("c"));
    give(&daemon, &middle, 2, write("b"));
    give(&daemon, &stranger, 3, write("d"));
    let _waiters = [
        ask(&daemon, &middle, request(4, write("c"))),
        ask(&daemon, &first, request(5, write("b"))),
        ask(&daemon, &apart, request(6, write("d"))),
    ];
    daemon.until_use("c", 0, 1);
    daemon.until_use("b", 0, 1);
    let told = waits(&daemon, "Why", json!({ "pid": first.pid() }));
    let chain = told.waits.iter().map(|wait| {
        let by = &wait.blockers[0];
        assert_eq!((wait.blockers.len(), by.holds, &by.key), (1, true, &wait.key));
        (wait.waiter.pid, wait.key.as_str(), by.party.pid)
    });
    let expected = [(first.pid(), "b", middle.pid()), (middle.pid(), "c", last.pid())];
    assert_eq!(chain.collect::<Vec<_>>(), expected);
    let session = told.waits[0].blockers[0].party.session.clone();
    let told = waits(&daemon, "Why", json!({ "session": session }));
    assert_eq!(told.waits.len(), 1);
}

#[test]
fn a_wait_inside_a_frame_blocks_the_waiters_for_that_frame() {
    let daemon = Daemon::start();
    let (far, first) = (Idler::start(), Idler::start());
    give(&daemon, &far, 1, write("b"));
    let mut outer = daemon.connect();
    let mut parameters = request(2, write("a"));
    parameters.as_object_mut().unwrap().remove("owner_fd");
    let grant = outer.call("Acquire", parameters);
    let inner = Idler::start();
    let mut parameters = request(3, write("b"));
    parameters["frame"] = grant["frame"].clone();
    let _inner = ask(&daemon, &inner, parameters);
    daemon.until_use("b", 0, 1);
    let _first = ask(&daemon, &first, request(4, write("a")));
    daemon.until_use("a", 0, 1);
    let told = waits(&daemon, "Why", json!({ "pid": first.pid() }));
    let pids: Vec<_> = told.waits.iter().map(|wait| wait.waiter.pid).collect();
    assert_eq!(pids, [first.pid(), inner.pid()]);
    // For the outer process, the daemon reports the wait of the inner one.
    let told = waits(&daemon, "Why", json!({ "pid": std::process::id() }));
    assert_eq!(told.waits[0].waiter.pid, inner.pid());
}

#[test]
fn long_lists_of_blockers_are_cut_and_count_the_rest() {
    let daemon = Daemon::start();
    let readers: Vec<Idler> = (0..25).map(|_| Idler::start()).collect();
    for (tag, reader) in (1..).zip(&readers) {
        give(&daemon, reader, tag, json!([{ "key": "a", "mode": "read" }]));
    }
    let writer = Idler::start();
    let _writer = ask(&daemon, &writer, request(99, write("a")));
    daemon.until_use("a", 0, 1);
    let told = waits(&daemon, "Graph", json!({}));
    assert_eq!(told.waits[0].blockers.len(), 20);
    assert_eq!(told.waits[0].blockers_left_out, 5);
}

#[test]
fn an_unknown_process_is_an_error() {
    let daemon = Daemon::start();
    let idler = Idler::start();
    let mut peer = daemon.connect();
    for (query, words) in [
        (json!({ "pid": idler.pid() }), "neither holds nor waits for a lock"),
        (json!({ "session": "s5" }), "session s5 neither holds"),
        (json!({ "session": "5" }), "is not a session"),
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
