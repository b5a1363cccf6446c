//! The daemon finds a deadlock at once, and reports it with every session in it.

use serde_json::{Value, json};

use crate::daemon_wire::locks::read_write::{ask, give, request, write};
use crate::wire::daemon::Daemon;
use crate::wire::peer::{Idler, Peer};

/// Reads the refusal for a deadlock.
#[track_caller]
fn deadlock(peer: &mut Peer, message: &str) -> Value {
    let (name, failure) = peer.error();
    assert_eq!((name.as_str(), &failure["reason"]), ("Refused", &json!("deadlock")));
    assert_eq!(failure["message"], message);
    failure["cycle"].clone()
}

#[track_caller]
fn check_step(step: &Value, waiter: &Idler, waits_for: &str, blocker: &Idler) {
    assert_eq!(step["waiter"]["pid"], waiter.pid(), "{step}");
    assert!(step["waiter"]["command"].as_str().unwrap().starts_with("peer"), "{step}");
    assert_eq!((&step["key"], &step["mode"]), (&json!(waits_for), &json!("write")));
    let by = &step["blocker"];
    assert_eq!((&by["party"]["pid"], &by["key"]), (&json!(blocker.pid()), &json!(waits_for)));
    assert_eq!((&by["holds"], &by["mode"]), (&json!(true), &json!("write")));
    assert!(by["since"].as_str().unwrap() > "2000", "{step}");
}

#[test]
fn the_request_that_closes_a_cycle_is_refused_with_the_whole_cycle() {
    let daemon = Daemon::start();
    let (old, young) = (Idler::start(), Idler::start());
    give(&daemon, &old, 1, write("a"));
    give(&daemon, &young, 2, write("b"));
    let mut waits = ask(&daemon, &old, request(3, write("b")));
    daemon.until_use("b", 0, 1);
    let mut closes = ask(&daemon, &young, request(4, write("a")));
    let words = "deadlock on `a`: 2 sessions would wait for each other forever";
    let cycle = deadlock(&mut closes, words);
    assert_eq!(cycle.as_array().unwrap().len(), 2);
    check_step(&cycle[0], &young, "a", &old);
    check_step(&cycle[1], &old, "b", &young);
    for (step, next) in [(0, 1), (1, 0)] {
        let (blocker, waiter) = (&cycle[step]["blocker"]["party"], &cycle[next]["waiter"]);
        assert_eq!(blocker["session"], waiter["session"]);
    }
    drop(young);
    waits.returned("Acquire");
}

#[test]
fn the_youngest_is_refused_even_if_it_already_waits() {
    let daemon = Daemon::start();
    let sessions: Vec<Idler> = (0..3).map(|_| Idler::start()).collect();
    let keys = ["a", "b", "c"];
    for (tag, (session, key)) in (1..).zip(sessions.iter().zip(keys)) {
        give(&daemon, session, tag, write(key));
    }
    // The youngest waits first, and the oldest completes the deadlock.
    let mut youngest = ask(&daemon, &sessions[2], request(4, write("a")));
    daemon.until_use("a", 0, 1);
    let mut second = ask(&daemon, &sessions[1], request(5, write("c")));
    daemon.until_use("c", 0, 1);
    let mut oldest = ask(&daemon, &sessions[0], request(6, write("b")));
    let words = "deadlock on `a`: 3 sessions would wait for each other forever";
    let cycle = deadlock(&mut youngest, words);
    check_step(&cycle[0], &sessions[2], "a", &sessions[0]);
    check_step(&cycle[1], &sessions[0], "b", &sessions[1]);
    check_step(&cycle[2], &sessions[1], "c", &sessions[2]);
    assert!(second.is_silent() && oldest.is_silent());
    let mut sessions = sessions;
    drop(sessions.remove(2));
    second.returned("Acquire");
    drop(sessions.remove(1));
    oldest.returned("Acquire");
}

#[test]
fn a_refused_nested_request_belongs_to_its_session() {
    let daemon = Daemon::start();
    // The outer frame is this process; the inner one holds nothing.
    let other = Idler::start();
    give(&daemon, &other, 1, write("b"));
    let mut parameters = request(2, write("a"));
    parameters.as_object_mut().unwrap().remove("owner_fd");
    let mut outer = daemon.connect();
    let grant = outer.call("Acquire", parameters);
    let mut waits = ask(&daemon, &other, request(3, write("a/x")));
    daemon.until_use("a/x", 0, 1);
    let inner = Idler::start();
    let mut parameters = request(4, write("b"));
    parameters["frame"] = grant["frame"].clone();
    let cycle = deadlock(
        &mut ask(&daemon, &inner, parameters),
        "deadlock on `b`: 2 sessions would wait for each other forever",
    );
    check_step(&cycle[0], &inner, "b", &other);
    assert_eq!(cycle[0]["waiter"]["session"], grant["session"]);
    assert_eq!(cycle[1]["waiter"]["pid"], other.pid());
    assert_eq!(cycle[1]["blocker"]["party"]["session"], grant["session"]);
    assert_eq!((&cycle[1]["key"], &cycle[1]["blocker"]["key"]), (&json!("a/x"), &json!("a")));
    outer.call("Release", json!({ "all": true }));
    waits.returned("Acquire");
}
