//! The reports of the daemon to clients that wait and clients that watch.

use serde_json::{Value, json};

use crate::wire::daemon::Daemon;
use crate::wire::peer::{Idler, mutex, mutex_for, try_mutex};

/// Whether the report names no holder.
fn no_holders(told: &Value) -> bool {
    told.get("holders").and_then(Value::as_array).is_none_or(Vec::is_empty)
}

#[test]
fn a_waiter_gets_its_position_at_once_and_after_each_change() {
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
    assert_eq!(told["reason"], "1 of 1 slots held");
    assert_eq!(told["holders"][0]["pid"], holder.pid());
    drop(first);
    let told = second.progress();
    assert_eq!((&told["position"], &told["waiting"]), (&json!(1), &json!(1)));
    drop(holder);
    second.returned("Acquire");
}

#[test]
fn a_waiter_behind_another_waiter_is_told_the_reason() {
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
    let told = small.progress();
    assert_eq!(told["reason"], "behind an earlier waiter");
    assert!(no_holders(&told), "no holder blocks it: {told}");
    let mut parameters = try_mutex(4, "a");
    parameters["items"] = json!([{ "key": "a" }]);
    let asker = Idler::start();
    let mut now = daemon.connect();
    parameters["owner_fd"] = 0.into();
    now.send_with("Acquire", parameters, &asker.pidfd());
    let (_, refused) = now.error();
    assert_eq!(refused["message"], "other requests are waiting for `a`");
    assert!(no_holders(&refused), "{refused}");
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
fn a_watcher_gets_every_change() {
    let daemon = Daemon::start();
    let mut watcher = daemon.connect();
    watcher.send_more("Status", json!({}));
    assert_eq!(watcher.progress()["keys"], json!([]));
    let holder = daemon.hold(1, "a");
    let keys = |told: &Value| told["keys"].as_array().unwrap().len();
    while keys(&watcher.progress()) == 0 {}
    drop(holder);
    while keys(&watcher.progress()) == 1 {}
    assert!(watcher.is_silent());
}

#[test]
fn a_process_with_several_holds_is_named_once_and_also_to_itself() {
    let daemon = Daemon::start();
    let mut holder = daemon.connect();
    for tag in 1..=3 {
        holder.call("Acquire", mutex(tag, "a"));
    }
    let idler = Idler::start();
    let mut other = daemon.connect();
    let mut parameters = mutex_for(4, "a");
    parameters["wait_ms"] = 0.into();
    other.send_with("Acquire", parameters, &idler.pidfd());
    let (_, refused) = other.error();
    assert_eq!(refused["message"], "`a` is full: 1 of 1 slots held");
    let named: Vec<_> =
        refused["holders"].as_array().unwrap().iter().map(|it| &it["pid"]).collect();
    assert_eq!(named, [&json!(std::process::id())]);
    // Each request for slots by `per` and `buckets` counts separately, even of one process.
    let mut parameters = try_mutex(5, "b");
    parameters["items"] = json!([{ "key": "b", "per": 1, "buckets": 1 }]);
    holder.call("Acquire", parameters.clone());
    parameters["tag"] = format!("{:032x}", 6).into();
    holder.send("Acquire", parameters);
    let (_, refused) = holder.error();
    assert_eq!(refused["holders"][0]["pid"], std::process::id(), "{refused}");
}
