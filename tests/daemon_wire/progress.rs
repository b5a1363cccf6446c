//! What those who wait and those who watch are told.

use serde_json::json;

use crate::daemon::Daemon;
use crate::peer::{Idler, mutex, mutex_for};

#[test]
fn a_waiter_is_told_at_once_and_when_its_position_changes() {
    let daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let idler = Idler::start();
    let mut first = daemon.connect();
    first.send_with("Acquire", mutex_for(2, "a"), &idler.pidfd());
    daemon.until_use("a", 1, 1);
    let mut second = daemon.connect();
    second.send_more("Acquire", mutex(3, "a"));
    let told = second.progress();
    assert_eq!(told["key"], "a");
    assert_eq!((&told["position"], &told["waiting"]), (&json!(2), &json!(2)));
    assert_eq!(told["reason"], "1 of 1 slot is held");
    assert_eq!(told["holders"][0]["pid"], holder.pid());
    drop(first);
    let told = second.progress();
    assert_eq!((&told["position"], &told["waiting"]), (&json!(1), &json!(1)));
    drop(holder);
    second.returned("Acquire");
}

#[test]
fn a_waiter_behind_another_one_is_told_so() {
    let daemon = Daemon::start();
    let _two = daemon.connect().call("Resize", json!({ "key": "a", "slots": 2 }));
    let _holder = daemon.hold_with(1, json!([{ "key": "a" }]));
    let idler = Idler::start();
    let mut large = daemon.connect();
    let mut parameters = mutex_for(2, "a");
    parameters["items"] = json!([{ "key": "a", "count": 2 }]);
    large.send_with("Acquire", parameters, &idler.pidfd());
    daemon.until_use("a", 1, 1);
    let mut small = daemon.connect();
    let mut parameters = mutex(3, "a");
    parameters["items"] = json!([{ "key": "a" }]);
    small.send_more("Acquire", parameters);
    assert_eq!(small.progress()["reason"], "behind an earlier waiter");
    drop(large);
    small.returned("Acquire");
}

#[test]
fn without_more_there_is_nothing_but_the_grant() {
    let daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(2, "a"));
    daemon.until_use("a", 1, 1);
    drop(holder);
    waiter.returned("Acquire");
}

#[test]
fn who_watches_is_told_of_changes() {
    let daemon = Daemon::start();
    let mut watcher = daemon.connect();
    watcher.send_more("Status", json!({}));
    assert_eq!(watcher.progress()["keys"], json!([]));
    let holder = daemon.hold(1, "a");
    let keys = |told: &serde_json::Value| told["keys"].as_array().unwrap().len();
    while keys(&watcher.progress()) == 0 {}
    drop(holder);
    while keys(&watcher.progress()) == 1 {}
    assert!(watcher.is_silent());
}
