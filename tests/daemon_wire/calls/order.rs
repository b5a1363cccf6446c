//! Replies follow the order of the calls, and grants follow the order of the waiters.

use std::time::{Duration, Instant};

use canal::sys::process::{RunState, run_state};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Idler, Peer, call, mutex, mutex_for, try_mutex};

#[test]
fn replies_come_in_the_order_of_the_calls_also_behind_a_call_that_waits() {
    let daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let mut peer = daemon.connect();
    let mut bytes = call("Status", json!({ "key": "none" }), json!({}));
    bytes.extend(call("Acquire", mutex(2, "a"), json!({})));
    bytes.extend(call("Release", json!({ "key": "a" }), json!({})));
    bytes.extend(call("org.varlink.service.GetInfo", Value::Null, json!({})));
    peer.raw(&bytes).unwrap();
    peer.returned("Status");
    daemon.until_use("a", 1, 1);
    assert!(peer.is_silent(), "what follows a call that waits is not answered before it");
    drop(holder);
    let token = peer.returned("Acquire")["token"].clone();
    // The same process sent the release before it got the grant.
    assert_eq!(peer.returned("Release")["released"][0]["token"], token);
    peer.returned("org.varlink.service.GetInfo");
}

#[test]
fn a_pipeline_of_acquire_and_release_is_served_as_sent() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    let mut bytes = Vec::new();
    for tag in 0..100 {
        bytes.extend(call("Acquire", try_mutex(tag, "a"), json!({})));
        bytes.extend(call("Release", json!({ "key": "a" }), json!({})));
    }
    peer.raw(&bytes).unwrap();
    let mut last = 0;
    for _ in 0..100 {
        let token = peer.returned("Acquire")["token"].as_u64().unwrap();
        assert!(token > last);
        last = token;
        assert_eq!(peer.returned("Release")["released"][0]["token"], token);
    }
}

#[test]
fn of_many_at_once_some_are_recorded_and_answered_before_the_others_are_served() {
    const MANY: u64 = 30;
    let mut daemon = Daemon::folder();
    // The daemon ends after this many records, before it sends any reply that depends on the last
    // of them.
    daemon.run(|command| {
        command.env("CANAL_FAULT", "journal:20");
    });
    let mut peers: Vec<_> = (0..MANY).map(|_| daemon.connect()).collect();
    for peer in &mut peers {
        peer.call("Status", json!({}));
    }
    daemon.signal(Signal::SIGSTOP);
    wait_until("it is stopped", || run_state(daemon.pid()) == RunState::Stopped);
    for (n, peer) in (1..).zip(&mut peers) {
        peer.send("Acquire", try_mutex(n, &format!("many/{n}")));
    }
    daemon.signal(Signal::SIGCONT);
    daemon.end();
    let told: Vec<_> = peers.iter_mut().filter_map(Peer::reply).collect();
    assert!(!told.is_empty(), "no reply came before the last call was served");
    daemon.run(|_| {});
    let held: Vec<Value> = (1..=MANY)
        .map(|n| format!("many/{n}"))
        .filter_map(|key| daemon.key(&key))
        .map(|key| json!(key.holders[0].token))
        .collect();
    assert!(told.iter().all(|grant| held.contains(&grant["parameters"]["token"])), "{told:?}");
    assert!(told.len() < held.len() && held.len() <= 20, "{} told of {}", told.len(), held.len());
}

#[test]
fn a_call_that_wants_no_reply_gets_none() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    let oneway = json!({ "oneway": true });
    let mut bytes = call("Resize", json!({ "key": "gpu", "slots": 2 }), oneway.clone());
    bytes.extend(call("Resize", json!({ "key": "/wrong" }), oneway.clone()));
    bytes.extend(call("Frobnicate", json!({}), oneway));
    bytes.extend(call("Status", json!({}), json!({})));
    peer.raw(&bytes).unwrap();
    assert_eq!(peer.returned("Status")["keys"][0]["view"], "2");
    assert!(peer.is_silent());
}

#[test]
fn waiters_are_granted_in_the_order_in_which_they_came() {
    let daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let mut waiters = Vec::new();
    for n in 1..20 {
        let idler = Idler::start();
        let mut waiter = daemon.connect();
        waiter.send_with("Acquire", mutex_for(u128::from(n) + 1, "a"), &idler.pidfd());
        waiters.push((idler, waiter));
        daemon.until_use("a", 1, n);
    }
    drop(holder);
    let mut last = 0;
    for (idler, mut waiter) in waiters {
        let token = waiter.returned("Acquire")["token"].as_u64().unwrap();
        assert!(token > last, "the tokens tell the order of the grants");
        last = token;
        drop(idler);
    }
}

#[test]
fn a_try_acquire_is_not_refused_at_once_for_a_holder_that_is_about_to_end() {
    let mut daemon = Daemon::folder();
    daemon.run(|command| {
        command.env("CANAL_LOG", "debug");
    });
    // While the kernel frees much memory, the process is neither alive nor dead. A machine faster
    // than this test proves nothing, so the test tries again with more memory.
    for tag in 0..10 {
        let mut holder = Idler::large((64 << 20) << (tag / 2));
        let mut asker = daemon.connect();
        asker.send_with("Acquire", mutex_for(tag * 2, "a"), &holder.pidfd());
        asker.returned("Acquire");
        asker.call("Confirm", json!({ "tag": format!("{:032x}", tag * 2) }));
        holder.kill_unreaped();
        let leaves = |state| matches!(state, RunState::Exiting | RunState::Gone);
        wait_until("it is on its way out", || leaves(run_state(holder.pid())));
        let mut peer = daemon.connect();
        let begun = Instant::now();
        let reply = peer.ask("Acquire", try_mutex(tag * 2 + 1, "a")).expect("a reply");
        let granted = reply.get("error").is_none();
        assert!(granted || begun.elapsed() >= EXITING_TIME, "{reply}");
        if granted && daemon.log().contains("a holder that is about to end") {
            return;
        }
        daemon.connect().send("Release", json!({ "all": true }));
        daemon.until_use("a", 0, 0);
    }
    panic!("no try met a holder on its way out");
}

/// How long the daemon waits for a holder that is about to end.
const EXITING_TIME: Duration = Duration::from_millis(100);
