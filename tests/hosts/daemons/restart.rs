//! Daemons that are killed or stopped, and that return or stay away.

use std::time::{Duration, Instant};

use crate::hosts::over_each_engine;
use crate::postgres_server;
use crate::shared_table::commands::{finish, lost, never_both, next, queue, start_for_now};
use crate::shared_table::{
    Host, Log, hosts, hosts_timed, mortal_and_patient_hosts, recorded, until_idle,
};
use crate::world::process::{in_time, installed_or_skip, root_or_skip, wait_until};
use crate::world::record::Events;

over_each_engine!(
    the_next_daemon_adopts_the_holds_and_waiters_of_a_killed_daemon,
    the_next_daemon_extends_the_deadline_of_a_command,
    the_next_daemon_frees_locks_whose_owner_ended_meanwhile,
    without_a_next_daemon_commands_are_killed_and_their_locks_are_freed,
    stopping_a_daemon_keeps_its_holds,
    stopping_an_idle_daemon_ends_its_membership,
    locks_of_an_engine_are_not_left_beside_those_of_a_journal,
    rule_08_an_expired_host_kills_its_owners_before_it_joins_again,
    rule_10_a_grant_to_a_waiter_that_died_meanwhile_is_given_back,
);

fn the_next_daemon_adopts_the_holds_and_waiters_of_a_killed_daemon(log: &Log) {
    let [a, b] = hosts(log);
    let holder = start_for_now(&a, "1");
    b.world.until_held("x", 1);
    let token = a.world.key("x").holders[0].token;
    let all = [&a, &b];
    let waiters = [queue(&a, &all, "2", 1), queue(&b, &all, "3", 2), queue(&a, &all, "4", 3)];
    a.world.kill_daemon();
    a.join();
    a.world.until_waiting("x", 3);
    b.world.until_waiting("x", 3);
    let held = b.world.key("x");
    assert_eq!((held.held, held.holders[0].token), (1, token), "the hold is the one it was");
    finish(&a, "1");
    holder.end().code(0);
    for waiter in waiters {
        waiter.end().code(0);
    }
    // The queue has the same order as before.
    never_both(&a, &["1", "2", "3", "4"]);
    until_idle(&[a, b]);
}

fn the_next_daemon_extends_the_deadline_of_a_command(log: &Log) {
    in_time(Duration::from_secs(3), |ttl| goes_on(log, ttl));
}

fn goes_on(log: &Log, ttl: Duration) -> Option<()> {
    let [a, b] = hosts_timed(log, &format!("ttl = \"{}s\"", ttl.as_secs()));
    let holder = a.world.holder(&["--no-start", "-k", "x"]);
    b.world.until_held("x", 1);
    let began = Instant::now();
    a.world.kill_daemon();
    a.join();
    if began.elapsed() > ttl / 3 {
        return None;
    }
    // By then the deadline that the first daemon published is long past.
    wait_until("the TTL is over twice", || began.elapsed() > ttl * 2);
    let held = b.world.held("x");
    let ended = holder.finish();
    if ended.code == Some(122) {
        // On a machine that stalls for this TTL, a command loses its lock although its daemon runs.
        return None;
    }
    ended.code(0);
    assert_eq!(held, 1);
    until_idle(&[a, b]);
    Some(())
}

fn the_next_daemon_frees_locks_whose_owner_ended_meanwhile(log: &Log) {
    let [a, b] = hosts(log);
    let holder = a.world.holder(&["-k", "x"]);
    b.world.until_held("x", 1);
    a.world.kill_daemon_quietly();
    let pid = b.world.key("x").holders[0].pid;
    crate::world::process::signal(pid.cast_signed(), nix::sys::signal::Signal::SIGKILL);
    holder.kill();
    a.join();
    b.world.until_held("x", 0);
    until_idle(&[a, b]);
}

fn without_a_next_daemon_commands_are_killed_and_their_locks_are_freed(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let body = recorded("while :; do sleep 0.1; done");
    // Without `--no-start` it would start a daemon that takes its host's place.
    let args = ["run", "--no-start", "-k", "x", "--", "sh", "-c", &body, "sh", "a"];
    let holder = a.world.canal(args).spawn();
    b.world.until_held("x", 1);
    wait_until("it runs", || Events::of(&a.world).started() == ["a"]);
    a.world.kill_daemon_quietly();
    next(&b, "b").end().code(0);
    never_both(&a, &["a", "b"]);
    lost(holder, "canal last reached ");
}

/// Another mount namespace, such as a container's, can have another directory with the same name.
/// An abstract socket keeps out a second daemon only within one network namespace.
#[test]
fn a_daemon_behind_another_mount_of_the_directory_adopts_nothing() {
    let what = "a directory in another mount namespace";
    if !root_or_skip(what) || !installed_or_skip("unshare", what) {
        return;
    }
    let Some(server) = postgres_server::shared() else { return };
    let log = Log::in_postgres(server);
    let [a, b] = hosts(&log);
    let holder = start_for_now(&a, "1");
    b.world.until_held("x", 1);
    let daemon = a.world.daemon_pid();
    let (database, dir, port) = (log.name(), server.dir().display(), server.port);
    let url = format!("postgres://{database}@/{database}?host={dir}&port={port}");
    let engine = format!("[engine]\nurl = \"{url}\"\nttl = \"20s\"\nhost = \"{}\"\n", a.label());
    let script = "umask 077 && mount -t tmpfs -o mode=700 tmpfs \"$1\" && \
                  printf %s \"$2\" >\"$1/canal.toml\" && exec canal daemon";
    let dir = a.world.runtime().display().to_string();
    let args = ["-m", "-n", "sh", "-c", script, "sh", &dir, &engine];
    let refused = a.world.program("unshare", args).end().code(125).stderr;
    assert!(refused.contains("another host has the name"), "{refused}");
    assert_eq!((a.state().as_str(), a.world.daemon_pid()), ("member", daemon));
    assert_eq!(b.world.held("x"), 1);
    finish(&a, "1");
    holder.end().code(0);
    until_idle(&[a, b]);
}

fn stopping_a_daemon_keeps_its_holds(log: &Log) {
    let [a, b] = hosts(log);
    let holder = a.world.holder(&["-k", "x"]);
    b.world.until_held("x", 1);
    a.world.canal(["daemon", "--stop"]).end().code(0);
    assert_eq!(b.world.held("x"), 1);
    a.join();
    assert_eq!(a.world.held("x"), 1);
    holder.finish().code(0);
    until_idle(&[a, b]);
}

fn stopping_an_idle_daemon_ends_its_membership(log: &Log) {
    let [a, b] = hosts(log);
    let hosts = || b.world.look().map_or(0, |status| status.hosts.len());
    a.world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
    a.world.canal(["daemon", "--stop"]).end().code(0);
    wait_until("b knows", || hosts() == 1);
    let said = std::fs::read_to_string(a.world.runtime().join("daemon.log")).unwrap();
    assert!(!said.contains("is lost"), "{said}");
    a.join();
    wait_until("b knows", || hosts() == 2);
    let holder = b.world.holder(&["-k", "x"]);
    let waiter = a.world.waiter("x", &[], &["echo", "on"]);
    b.world.until_waiting("x", 1);
    a.world.canal(["daemon", "--stop"]).end().code(0);
    assert_eq!((hosts(), b.world.key("x").waiting), (2, 1), "the next daemon goes on");
    holder.finish().code(0);
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    until_idle(&[a, b]);
}

fn locks_of_an_engine_are_not_left_beside_those_of_a_journal(log: &Log) {
    let [a] = hosts(log);
    let holder = a.world.holder(&["--no-start", "-k", "x"]);
    let pid = a.world.key("x").holders[0].pid;
    a.world.canal(["daemon", "--stop"]).end().code(0);
    let config = a.world.runtime().join("canal.toml");
    let with_engine = std::fs::read_to_string(&config).unwrap();
    std::fs::remove_file(&config).unwrap();
    let said = a.world.canal(["daemon"]).end().code(125).stderr;
    assert!(said.contains("hold an engine's locks") && said.contains("hint: "), "{said}");
    assert!(said.contains(&format!("pid {pid}")), "{said}");
    let said = a.world.canal(["run", "-n", "-k", "x", "--", "echo", "ran"]).end().code(125);
    assert!(said.stderr.contains("hold an engine's locks"), "{said:?}");
    std::fs::write(&config, with_engine).unwrap();
    a.join();
    holder.finish().code(0);
    a.world.until_idle();
    a.world.canal(["daemon", "--stop"]).end().code(0);
    std::fs::remove_file(&config).unwrap();
    let said = a.world.canal(["run", "-n", "-k", "x", "--", "echo", "ran"]).end().code(125);
    assert!(said.stderr.contains("but no engine is given now"), "{said:?}");
    assert!(said.stderr.contains("`canal daemon --no-engine`"), "{said:?}");
    assert!(said.stdout.is_empty(), "{said:?}");
    let daemon = a.world.daemon(|daemon| daemon.arg("--no-engine"));
    a.world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
    a.world.canal(["daemon", "--stop"]).end().code(0);
    daemon.end().code(0);
    a.world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
}

fn rule_08_an_expired_host_kills_its_owners_before_it_joins_again(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let script = "canal acquire -q --pid $$ -k x || exit; echo told; while :; do sleep 0.05; done";
    let mut owner = a.world.sh(script).spawn();
    wait_until("it has printed the grant", || owner.stdout().contains("told"));
    b.world.until_held("x", 1);
    a.world.kill_daemon_quietly();
    b.world.until_held("x", 0);
    assert!(!owner.has_ended(), "no daemon ran that could end it");
    a.world.status();
    wait_until("the host is a member", || {
        let joined = a.state() == "member";
        let log = std::fs::read_to_string(a.world.runtime().join("daemon.log")).unwrap();
        assert!(!joined || owner.has_ended(), "it joined, and the owner still runs\n{log}");
        joined
    });
    assert_eq!(owner.end().signal, Some(9));
    until_idle(&[a, b]);
}

fn rule_10_a_grant_to_a_waiter_that_died_meanwhile_is_given_back(log: &Log) {
    let [a, b] = hosts(log);
    let holder = b.world.holder(&["-k", "x"]);
    a.world.until_held("x", 1);
    let body = recorded(":");
    let first = a.world.waiter("x", &[], &["sh", "-c", &body, "sh", "dead"]);
    b.world.until_waiting("x", 1);
    let next = b.world.canal(["run", "-k", "x", "--", "sh", "-c", &body, "sh", "next"]).spawn();
    b.world.until_waiting("x", 2);
    let waiting = a.world.key("x").waiters[0].pid;
    let frozen = a.freeze();
    for pid in [first.pid(), waiting.cast_signed()] {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
    holder.finish().code(0);
    wait_until("the log grants the dead waiter the lock", || {
        b.world.key("x").holders.iter().any(|holder| holder.pid == waiting)
    });
    Host::go_on(frozen);
    next.end().code(0);
    assert_eq!(Events::of(&a.world).started(), ["next"]);
    until_idle(&[a, b]);
}
