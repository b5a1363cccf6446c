//! Hooks of hosts that share a table: each event occurs once, on the host of its request.

use std::fs;
use std::io::Write as _;

use serde_json::{Value, json};

use crate::hosts::over_each_engine;
use crate::shared_table::commands::{lost, release, start};
use crate::shared_table::{Host, Log, PATIENT, SHORT, until_idle};
use crate::world::executable::executable;
use crate::world::process::wait_until;

over_each_engine!(
    a_long_wait_is_told_once_by_the_host_where_it_waits,
    a_lease_that_ends_is_told_once_by_its_host,
    a_release_by_force_is_told_once_by_the_host_of_the_holder,
    what_is_lost_with_a_membership_is_told_once_by_its_host,
);

/// Two hosts, each with a hook that receives these events and keeps them.
fn hosts(log: &Log, times: [&str; 2], on: &str) -> [Host; 2] {
    let user = if nix::unistd::geteuid().is_root() { "user = \"root\"\n" } else { "" };
    let a = Host::new(log, "a", times[0], None);
    let b = Host::new(log, "b", times[1], Some(&a.world));
    for host in [&a, &b] {
        let program = host.world.path("tell");
        executable(&program, "#!/bin/sh\ncat >>\"$0.told\"\n");
        let config = host.world.runtime().join("canal.toml");
        let mut config = fs::OpenOptions::new().append(true).open(config).unwrap();
        write!(config, "\n[[hooks]]\non = [{on:?}]\nrun = [{program:?}]\n{user}").unwrap();
        if on.starts_with("long") {
            config.write_all(b"after = \"1s\"\n").unwrap();
        }
    }
    [&a, &b].into_iter().for_each(Host::join);
    [a, b]
}

fn told(host: &Host) -> Vec<Value> {
    let text = fs::read_to_string(host.world.path("tell.told")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until the hook of a host has received an event, and returns it.
#[track_caller]
fn only_event(host: &Host, label: &str) -> Value {
    wait_until("the hook is told", || !told(host).is_empty());
    let mut told = told(host);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!(told[0]["host"], label);
    told.remove(0)
}

/// The process that holds a key, as its host shows it.
fn holder_of(host: &Host, key: &str) -> u32 {
    host.world.key(key).holders[0].pid
}

/// The process that waits for a key, as its host shows it.
fn waiter_for(host: &Host, key: &str) -> u32 {
    host.world.key(key).waiters[0].pid
}

fn a_long_wait_is_told_once_by_the_host_where_it_waits(log: &Log) {
    let [a, b] = hosts(log, [PATIENT; 2], "long-wait");
    let first = a.world.holder(&["-k", "x"]);
    b.world.until_held("x", 1);
    let waiter = b.world.waiter("x", &[], &["true"]);
    let event = only_event(&b, "b");
    assert_eq!(event["pid"], waiter_for(&b, "x"), "{event}");
    assert!(event["waited_ms"].as_u64() >= Some(1000), "{event}");
    assert_eq!(event["holders"][0]["pid"], holder_of(&a, "x"), "{event}");
    // Now the other way round. Meanwhile the first wait is long enough for a second event.
    let second = b.world.holder(&["-k", "y"]);
    a.world.until_held("y", 1);
    let other = a.world.waiter("y", &[], &["true"]);
    let event = only_event(&a, "a");
    assert_eq!(event["pid"], waiter_for(&a, "y"), "{event}");
    only_event(&b, "b");
    first.finish();
    second.finish();
    waiter.end().code(0);
    other.end().code(0);
    until_idle(&[a, b]);
}

/// Lets a lease of a host expire.
#[track_caller]
fn lose_a_lease(host: &Host, key: &str) {
    let ended = host.world.canal(["acquire", "--ttl", "1", key]).end();
    // On a busy machine its TTL can pass before its client has confirmed it. It is lost in either
    // case.
    if !ended.stderr.contains("took the lock back before the confirmation") {
        ended.code(0);
    }
}

fn a_lease_that_ends_is_told_once_by_its_host(log: &Log) {
    let [a, b] = hosts(log, [PATIENT; 2], "lost-lease");
    for (host, label) in [(&a, "a"), (&b, "b")] {
        lose_a_lease(host, label);
        let event = only_event(host, label);
        assert_eq!((&event["how"], &event["pid"]), (&json!("expired"), &json!(0)), "{event}");
        assert_eq!(event["items"][0]["key"], label);
    }
    only_event(&a, "a");
    until_idle(&[a, b]);
}

fn a_release_by_force_is_told_once_by_the_host_of_the_holder(log: &Log) {
    let [a, b] = hosts(log, [PATIENT; 2], "forced-release");
    for (host, label, other) in [(&a, "a", &b), (&b, "b", &a)] {
        let holder = host.world.holder(&["-k", label]);
        other.world.until_held(label, 1);
        let held = host.world.key(label).holders.remove(0);
        let token = held.token.to_string();
        release(other, &["--force", "--token", &token]);
        let event = only_event(host, label);
        assert_eq!(event["pid"], held.pid, "{event}");
        assert_eq!((event["token"].to_string(), &event["by"]), (token, &Value::Null), "{event}");
        holder.finish();
    }
    only_event(&a, "a");
    until_idle(&[a, b]);
}

fn what_is_lost_with_a_membership_is_told_once_by_its_host(log: &Log) {
    let [a, b] = hosts(log, [SHORT, PATIENT], "lost-lease");
    let holder = start(&a, "a");
    b.world.until_held("x", 1);
    a.proxy.cut();
    lost(holder, "canal last reached ");
    b.world.until_held("x", 0);
    a.proxy.mend();
    a.until("member");
    let event = only_event(&a, "a");
    assert_eq!((&event["how"], &event["items"][0]["key"]), (&json!("lost"), &json!("x")));
    // The other host saw the same end, but its hook receives only events about its own leases.
    lose_a_lease(&b, "y");
    assert_eq!(only_event(&b, "b")["items"][0]["key"], "y");
    only_event(&a, "a");
    until_idle(&[a, b]);
}
