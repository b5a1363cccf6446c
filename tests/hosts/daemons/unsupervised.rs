//! Processes without a `canal run`: they end in time too, even when their daemon was killed.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::hosts::over_each_engine;
use crate::shared_table::commands::{finish, never_both, next, start_for_now};
use crate::shared_table::{
    Host, Log, hosts, mortal_and_patient_hosts, one_mortal_host, recorded, until_idle,
};
use crate::world::process::{Proc, alive, in_time, signal, wait_until};
use crate::world::record::Events;

over_each_engine!(
    rule_07_owners_end_in_time_after_their_daemon_is_killed,
    rule_07_owners_end_in_time_when_no_next_daemon_can_start,
    rule_07_owners_end_in_time_after_their_daemon_in_the_foreground_is_killed,
    rule_07_owners_end_in_time_after_their_daemon_is_stopped,
    rule_07_descendants_end_in_time_after_canal_run_is_killed,
    rule_07_descendants_of_a_command_that_has_ended_end_in_time,
    rule_07_descendants_end_in_time_after_canal_run_and_the_daemon_are_killed,
    a_next_daemon_that_cannot_reach_the_engine_kills_the_owners_of_lost_locks,
    the_watcher_restarts_a_daemon_that_is_killed_while_locks_are_held,
    a_daemon_whose_watcher_is_killed_starts_another_one,
    the_watcher_ends_with_a_daemon_that_holds_nothing,
);

/// A process that holds `x` and was not started by canal.
fn owner(host: &Host, name: &str) -> Proc {
    let body = recorded("while :; do sleep 0.1; done");
    let script = format!("set -- {name}; canal acquire -q --pid $$ -k x || exit; {body}");
    let owner = host.world.sh(&script).spawn();
    wait_until("it runs", || Events::of(&host.world).started().contains(&name));
    owner
}

/// Checks that it was asked to end, or that it was killed because the machine was too slow.
#[track_caller]
fn ended_in_time(owner: Proc) {
    let ended = owner.end();
    assert!(ended.code == Some(0) || ended.signal == Some(9), "{ended:?}");
}

fn kill_only_the_daemon(host: &Host) -> i32 {
    let pid = host.world.daemon_pid();
    signal(pid, Signal::SIGKILL);
    wait_until("the daemon is dead", || !alive(pid));
    pid
}

fn rule_07_owners_end_in_time_after_their_daemon_is_killed(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let owner = owner(&a, "a");
    b.world.until_held("x", 1);
    a.proxy.cut();
    kill_only_the_daemon(&a);
    next(&b, "b").end().code(0);
    never_both(&a, &["a", "b"]);
    ended_in_time(owner);
    a.proxy.mend();
    a.join();
    until_idle(&[a, b]);
}

fn rule_07_owners_end_in_time_when_no_next_daemon_can_start(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let owner = owner(&a, "a");
    b.world.until_held("x", 1);
    let daemon = a.world.daemon_pid();
    fs::write(a.world.runtime().join("canal.toml"), "[engine\n").unwrap();
    signal(daemon, Signal::SIGKILL);
    next(&b, "b").end().code(0);
    never_both(&a, &["a", "b"]);
    ended_in_time(owner);
    wait_until("its watcher has ended", || a.world.watchers().is_empty());
    assert!(a.world.look().is_none(), "there is no daemon");
}

fn rule_07_owners_end_in_time_after_their_daemon_in_the_foreground_is_killed(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    a.world.canal(["daemon", "--stop"]).end().code(0);
    let daemon = a.world.daemon(|daemon| daemon);
    a.until("member");
    let owner = owner(&a, "a");
    b.world.until_held("x", 1);
    daemon.kill();
    next(&b, "b").end().code(0);
    never_both(&a, &["a", "b"]);
    ended_in_time(owner);
    wait_until("its watcher has ended", || a.world.watchers().is_empty());
    assert!(a.world.look().is_none(), "a service manager starts the next one");
}

fn rule_07_owners_end_in_time_after_their_daemon_is_stopped(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let owner = owner(&a, "a");
    b.world.until_held("x", 1);
    a.world.canal(["daemon", "--stop"]).end().code(0);
    next(&b, "b").end().code(0);
    never_both(&a, &["a", "b"]);
    ended_in_time(owner);
    assert!(a.world.look().is_none(), "no client needs a daemon");
    wait_until("its watcher has ended", || a.world.watchers().is_empty());
}

/// A process that leaves the command that started it, and holds the file `hand` while it lives.
const DAEMON: &str =
    "exec 9>>hand; flock 9; echo >daemonised; while [ -e hand ]; do sleep 0.05 9>&-; done";

/// Starts `canal run` with a command that starts [`DAEMON`], and kills only `canal run`.
#[track_caller]
fn leave_behind(host: &Host, options: &[&str], how: &str, then: &str) {
    let body = format!("(setsid {how} sh -c '{DAEMON}' </dev/null >/dev/null 2>&1 &); {then}");
    let mut args = vec!["run", "-k", "x"];
    args.extend(options);
    args.extend(["--", "sh", "-c", &body]);
    let run = host.world.canal(args).spawn();
    wait_until("it has left", || host.world.path("work").join("daemonised").exists());
    signal(run.child.id().cast_signed(), Signal::SIGKILL);
    assert_eq!(run.end().signal, Some(9));
}

/// Waits until the other host has the lock. Returns whether no process is left then.
#[track_caller]
fn nothing_is_left(host: &Host) -> Option<()> {
    let ended = host.world.canal(["run", "-k", "x", "--", "flock", "-n", "hand", "true"]).end();
    assert!(matches!(ended.code, Some(0 | 1)), "{ended:?}");
    (ended.code == Some(0)).then_some(())
}

/// Tries longer TTLs on a busy machine. The daemon has a twelfth of the TTL to find the descendants
/// of a command among all processes of the machine. A test that kills a daemon has two thirds of
/// it.
fn with_a_ttl_that_will_do(log: &Log, attempt: fn([Host; 2]) -> Option<()>) {
    in_time(Duration::from_secs(4), |ttl| attempt(one_mortal_host(&log.another()?, ttl)));
}

const FOR_EVER: &str = "while :; do sleep 0.1; done";

fn rule_07_descendants_end_in_time_after_canal_run_is_killed(log: &Log) {
    with_a_ttl_that_will_do(log, |[a, b]| {
        leave_behind(&a, &[], "", FOR_EVER);
        b.world.until_held("x", 1);
        a.proxy.cut();
        nothing_is_left(&b)?;
        a.proxy.mend();
        a.until("member");
        until_idle(&[a, b]);
        Some(())
    });
}

fn rule_07_descendants_of_a_command_that_has_ended_end_in_time(log: &Log) {
    with_a_ttl_that_will_do(log, |[a, b]| {
        // The daemon recognizes it by the descriptor that keeps the lock, whatever its environment.
        leave_behind(&a, &["--with-children"], "env -i PATH=\"$PATH\"", "exit 0");
        wait_until("only the descendant keeps it", || {
            let holders = a.world.key("x").holders;
            holders.len() == 1 && !alive(holders[0].pid.cast_signed())
        });
        b.world.until_held("x", 1);
        a.proxy.cut();
        nothing_is_left(&b)?;
        a.proxy.mend();
        a.until("member");
        until_idle(&[a, b]);
        Some(())
    });
}

fn rule_07_descendants_end_in_time_after_canal_run_and_the_daemon_are_killed(log: &Log) {
    with_a_ttl_that_will_do(log, |[a, b]| {
        leave_behind(&a, &["--with-children"], "", "exit 0");
        b.world.until_held("x", 1);
        a.proxy.cut();
        kill_only_the_daemon(&a);
        nothing_is_left(&b)?;
        a.proxy.mend();
        a.join();
        until_idle(&[a, b]);
        Some(())
    });
}

fn a_next_daemon_that_cannot_reach_the_engine_kills_the_owners_of_lost_locks(log: &Log) {
    with_a_ttl_that_will_do(log, |[a, b]| {
        let owner = owner(&a, "a");
        b.world.until_held("x", 1);
        a.proxy.cut();
        a.world.kill_daemon_quietly();
        a.world.status();
        let ended = owner.end();
        // The daemon asked it to end before it was killed.
        if ended.code == Some(0) {
            return None;
        }
        assert_eq!(ended.signal, Some(9), "{ended:?}");
        a.proxy.mend();
        a.until("member");
        until_idle(&[a, b]);
        Some(())
    });
}

fn the_watcher_restarts_a_daemon_that_is_killed_while_locks_are_held(log: &Log) {
    let [a, b] = hosts(log);
    let owner = owner(&a, "a");
    b.world.until_held("x", 1);
    let before = kill_only_the_daemon(&a);
    wait_until("another one runs", || {
        a.world.look().is_some_and(|it| it.daemon.pid.cast_signed() != before)
    });
    a.until("member");
    wait_until("it has a watcher, and the one before has ended", || a.world.watchers().len() == 1);
    assert_eq!(b.world.held("x"), 1, "the hold is the one it was");
    owner.kill();
    b.world.until_held("x", 0);
    until_idle(&[a, b]);
}

fn a_daemon_whose_watcher_is_killed_starts_another_one(log: &Log) {
    let [a] = hosts(log);
    let holder = start_for_now(&a, "a");
    let [first] = a.world.watchers()[..] else { panic!("{:?}", a.world.watchers()) };
    signal(first, Signal::SIGKILL);
    wait_until("there is another one", || {
        a.world.watchers().iter().any(|pid| *pid != first && alive(*pid))
    });
    finish(&a, "a");
    holder.end().code(0);
    until_idle(&[a]);
}

fn the_watcher_ends_with_a_daemon_that_holds_nothing(log: &Log) {
    let [a] = hosts(log);
    wait_until("it has a watcher", || a.world.watchers().len() == 1);
    a.world.canal(["daemon", "--stop"]).end().code(0);
    wait_until("it has ended", || a.world.watchers().is_empty());
}
