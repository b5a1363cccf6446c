//! Hosts that are stopped or cut off for longer than their TTL: their locks become free only after
//! their commands have ended.

use std::fs;
use std::time::{Duration, Instant};

use crate::hosts::over_each_engine;
use crate::shared_table::commands::{
    answered, finish, lost, never_both, next, queue, start, start_for_now,
};
use crate::shared_table::{
    Host, Log, hosts, hosts_timed, mortal_and_patient_hosts, recorded, until_idle,
};
use crate::world::process::{in_time, wait_until};
use crate::world::record::Events;

over_each_engine!(
    rule_07_a_command_ends_in_time_although_its_daemon_is_stopped,
    rule_07_a_stopped_daemon_kills_the_owners_of_lost_locks_when_it_wakes_up,
    rule_07_a_host_that_is_cut_off_ends_its_commands_in_time,
    rule_07_a_network_that_falls_silent_ends_commands_in_time,
    rule_07_a_command_that_ignores_term_is_killed,
    a_try_acquire_reports_the_silent_engine_and_not_the_daemon,
    a_host_that_is_cut_off_shows_its_last_table,
    rule_07_on_lost_of_a_request_is_obeyed,
    a_short_cut_loses_no_lock,
    a_waiter_of_an_expired_host_is_requested_again,
    a_waiter_of_a_frozen_host_that_was_declared_gone_is_requested_again,
);

fn rule_07_a_command_ends_in_time_although_its_daemon_is_stopped(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let holder = start(&a, "a");
    b.world.until_held("x", 1);
    let frozen = a.freeze();
    let next = next(&b, "b");
    lost(holder, "canal last reached ");
    next.end().code(0);
    never_both(&a, &["a", "b"]);
    Host::go_on(frozen);
    a.until("member");
    answered(&a, ["run", "-n", "-k", "x", "--", "true"]).code(0);
    until_idle(&[a, b]);
}

fn rule_07_a_stopped_daemon_kills_the_owners_of_lost_locks_when_it_wakes_up(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let script = "canal acquire -q --pid $$ -k x || exit; echo told; while :; do sleep 0.05; done";
    let owner = a.world.sh(script).spawn();
    wait_until("it is confirmed", || owner.stdout().contains("told"));
    b.world.until_held("x", 1);
    let frozen = a.freeze();
    b.world.until_held("x", 0);
    Host::go_on(frozen);
    let ended = owner.end();
    assert_eq!(ended.signal, Some(9), "{ended:?}");
    a.until("member");
    until_idle(&[a, b]);
}

fn a_try_acquire_reports_the_silent_engine_and_not_the_daemon(log: &Log) {
    let [a] = hosts(log);
    a.proxy.fall_silent();
    // The host loses its membership while this request waits for the log.
    let refused = a.world.canal(["run", "-n", "-k", "x", "--", "echo", "ran"]).end().code(125);
    assert!(refused.stderr.contains("engine"), "{refused:?}");
    assert!(!refused.stderr.contains("kill -9"), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
    a.proxy.mend();
    a.until("member");
    until_idle(&[a]);
}

fn a_host_that_is_cut_off_shows_its_last_table(log: &Log) {
    // Long enough to check the status before the TTL is over.
    let [a] = hosts_timed(log, "ttl = \"20s\"\nrenewal = \"500ms\"");
    let holder = start(&a, "a");
    a.proxy.cut();
    a.until("away");
    let shown = || a.world.canal(["status"]).end().code(0).stdout;
    let before = shown();
    assert!(before.starts_with("engine ") && before.contains("unreachable since"), "{before}");
    assert!(before.contains("canal will end commands here at"), "{before}");
    assert!(
        before.contains("it may have changed since:") && before.contains("holds  "),
        "{before}"
    );
    lost(holder, "canal last reached ");
    let after = shown();
    assert!(after.contains("it may have changed since:") && after.contains("holds  "), "{after}");
    a.proxy.mend();
    a.until("member");
    until_idle(&[a]);
}

fn rule_07_a_host_that_is_cut_off_ends_its_commands_in_time(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let holder = start(&a, "a");
    b.world.until_held("x", 1);
    a.proxy.cut();
    let next = next(&b, "b");
    lost(holder, "canal last reached ");
    next.end().code(0);
    never_both(&a, &["a", "b"]);
    a.proxy.mend();
    a.until("member");
    a.world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
    until_idle(&[a, b]);
}

fn rule_07_a_network_that_falls_silent_ends_commands_in_time(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let holder = start(&a, "a");
    b.world.until_held("x", 1);
    a.proxy.fall_silent();
    let next = next(&b, "b");
    lost(holder, "canal last reached ");
    next.end().code(0);
    never_both(&a, &["a", "b"]);
    // Messages sent in the meantime arrive now.
    a.proxy.mend();
    a.until("member");
    until_idle(&[a, b]);
}

fn rule_07_a_command_that_ignores_term_is_killed(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let body = "trap '' TERM; while :; do sleep 0.02; echo >alive; done";
    let holder = a.world.canal(["run", "-k", "x", "--", "sh", "-c", body]).spawn();
    b.world.until_held("x", 1);
    wait_until("it runs", || a.world.path("work").join("alive").exists());
    a.proxy.cut();
    // The next holder checks that the killed command no longer writes.
    let check = "rm -f alive; sleep 0.3; test ! -e alive";
    b.world.canal(["run", "-k", "x", "--", "sh", "-c", check]).end().code(0);
    lost(holder, "canal last reached ");
    a.proxy.mend();
    a.until("member");
}

fn rule_07_on_lost_of_a_request_is_obeyed(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let script = |fate: &str, then: &str| {
        format!(
            "{then}; canal acquire -q --pid $$ --on-lost {fate} -k {fate} || exit; echo told; \
             while :; do sleep 0.05; done"
        )
    };
    let mut warned = a.world.sh(&script("warn", ":")).spawn();
    let mut asked = a.world.sh(&script("term", "trap 'echo asked' TERM")).spawn();
    for owner in [&warned, &asked] {
        wait_until("it has printed the grant", || owner.stdout().contains("told"));
    }
    b.world.until_held("warn", 1);
    b.world.until_held("term", 1);
    a.proxy.cut();
    b.world.until_held("warn", 0);
    b.world.until_held("term", 0);
    a.proxy.mend();
    a.until("member");
    wait_until("one was asked to end", || asked.stdout().contains("asked"));
    assert!(!warned.has_ended() && !asked.has_ended(), "no owner was killed");
    assert!(!warned.stdout().contains("asked"));
    for owner in [warned, asked] {
        owner.kill();
    }
    until_idle(&[a, b]);
}

/// TERM is due after half of the TTL, KILL shortly before its end.
fn times(ttl: Duration) -> String {
    let (grace, margin) = (ttl * 5 / 12, ttl / 12);
    let times = [("ttl", ttl), ("renewal", ttl / 12), ("grace", grace), ("margin", margin)];
    times.map(|(name, time)| format!("{name} = \"{}ms\"\n", time.as_millis())).concat()
}

/// The first TTL to try when the test must act between TERM and the end of the TTL.
const FIRST: Duration = Duration::from_secs(6);

/// Waits until TERM is due for a host that last renewed at `since`.
fn until_term(since: Instant, ttl: Duration) {
    wait_until("TERM would be due", || since.elapsed() > ttl / 2 + ttl / 30);
}

/// Whether KILL is not yet due.
fn is_before_kill(since: Instant, ttl: Duration) -> bool {
    since.elapsed() < ttl * 5 / 6
}

#[test]
fn rule_04_a_grant_that_etcd_pushes_after_the_deadline_is_not_told() {
    in_time(FIRST, |ttl| {
        crate::shared_table::etcd().map_or(Some(()), |log| pushed_too_late(&log, ttl))
    });
}

fn pushed_too_late(log: &Log, ttl: Duration) -> Option<()> {
    let [a, b] = hosts_timed(log, &times(ttl));
    let holder = b.world.holder(&["-k", "x"]);
    a.world.until_held("x", 1);
    let body = recorded("sleep 0.2");
    let ours = a.world.waiter("x", &[], &["sh", "-c", &body, "sh", "a"]);
    b.world.until_waiting("x", 1);
    let waiting = b.world.key("x").waiters[0].pid;
    let other = b.world.waiter("x", &[], &["sh", "-c", &body, "sh", "b"]);
    let frozen = a.freeze();
    let since = Instant::now();
    holder.finish().code(0);
    let has_it = || b.world.key("x").holders.iter().any(|holder| holder.pid == waiting);
    wait_until("the log grants it the lock", || has_it() || !is_before_kill(since, ttl));
    until_term(since, ttl);
    // etcd has already pushed the entry to the daemon, but the daemon's renewals are lost.
    a.proxy.fall_silent();
    Host::go_on(frozen);
    if !is_before_kill(since, ttl) {
        return None;
    }
    wait_until("the other command runs", || {
        let events = Events::of(&b.world);
        assert!(!events.started().contains(&"a"), "a late grant was told: {events:?}");
        events.started() == ["b"] || was_lost(&b)
    });
    if was_lost(&b) {
        return None;
    }
    other.end().code(0);
    a.proxy.mend();
    // The daemon repeats the request, and its client gets no error.
    ours.end().code(0);
    never_both(&a, &["b", "a"]);
    until_idle(&[a, b]);
    Some(())
}

/// Whether a host lost its holds because the machine is too slow for the TTL.
fn was_lost(host: &Host) -> bool {
    let log = fs::read_to_string(host.world.runtime().join("daemon.log")).unwrap_or_default();
    log.contains("lost all holds of this host")
}

/// A daemon over PostgreSQL that was frozen renews before it reads. So here it can read but not
/// renew.
#[test]
fn rule_04_a_grant_that_is_read_from_postgres_when_no_renewal_succeeds_is_not_told() {
    in_time(FIRST, |ttl| {
        crate::shared_table::postgres().map_or(Some(()), |log| read_too_late(&log, ttl))
    });
}

fn read_too_late(log: &Log, ttl: Duration) -> Option<()> {
    let [a, b] = hosts_timed(log, &times(ttl));
    let holder = start_for_now(&b, "1");
    let ours = queue(&a, &[&a, &b], "a", 1);
    let waiting = b.world.key("x").waiters[0].pid;
    let other = queue(&b, &[&a, &b], "b", 2);
    a.proxy.withhold("renewals = renewals + 1");
    let since = Instant::now();
    until_term(since, ttl);
    finish(&b, "1");
    holder.end().code(0);
    let has_it = |host: &Host| host.world.key("x").holders.iter().any(|it| it.pid == waiting);
    wait_until("the log grants it the lock", || has_it(&b) || !is_before_kill(since, ttl));
    a.proxy.cut_once();
    wait_until("its daemon has read so", || has_it(&a) || !is_before_kill(since, ttl));
    if !is_before_kill(since, ttl) {
        return None;
    }
    wait_until("the other command runs", || {
        let events = Events::of(&b.world);
        assert!(!events.started().contains(&"a"), "a late grant was told: {events:?}");
        events.started().contains(&"b") || was_lost(&b)
    });
    if was_lost(&b) {
        return None;
    }
    other.end().code(0);
    a.proxy.mend();
    ours.end().code(0);
    never_both(&a, &["1", "b", "a"]);
    until_idle(&[a, b]);
    Some(())
}

fn a_short_cut_loses_no_lock(log: &Log) {
    let [a, b] = hosts(log);
    let holder = a.world.holder(&["-k", "x"]);
    b.world.until_held("x", 1);
    a.proxy.cut();
    a.until("away");
    a.proxy.mend();
    a.until("member");
    assert_eq!(b.world.held("x"), 1);
    holder.finish().code(0);
    until_idle(&[a, b]);
}

fn a_waiter_of_an_expired_host_is_requested_again(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let holder = b.world.holder(&["-k", "x"]);
    a.world.until_held("x", 1);
    let waiter = a.world.waiter("x", &[], &["echo", "on"]);
    b.world.until_waiting("x", 1);
    a.proxy.cut();
    b.world.until_waiting("x", 0);
    a.proxy.mend();
    b.world.until_waiting("x", 1);
    holder.finish().code(0);
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    until_idle(&[a, b]);
}

fn a_waiter_of_a_frozen_host_that_was_declared_gone_is_requested_again(log: &Log) {
    let again = || log.another().is_none_or(|log| stands_still(&log));
    assert!((0..7).any(|_| again()), "each time it stood still for 30 s");
}

/// Whether the daemon was stopped for less than 30 s. A client waits no longer than that for a
/// stopped daemon. On a busy machine the other host may take longer to declare it gone.
fn stands_still(log: &Log) -> bool {
    let [a, b] = mortal_and_patient_hosts(log);
    let holder = b.world.holder(&["-k", "x"]);
    a.world.until_held("x", 1);
    let mut waiter = a.world.waiter("x", &[], &["echo", "on"]);
    b.world.until_waiting("x", 1);
    let frozen = a.freeze();
    b.world.until_waiting("x", 0);
    Host::go_on(frozen);
    wait_until("it waits again, or has given up", || {
        b.world.key("x").waiting == 1 || waiter.has_ended()
    });
    if waiter.has_ended() {
        let ended = waiter.end().code(125);
        assert!(ended.stderr.contains("does not answer"), "{ended:?}");
        return false;
    }
    holder.finish().code(0);
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    until_idle(&[a, b]);
    true
}
