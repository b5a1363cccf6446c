//! Faults that an operator can repair end no host permanently, and no command before its deadline.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::etcd_server::certificates::Certificates;
use crate::etcd_server::{Etcd, installed, start_etcd, start_etcd_cluster_tls, start_etcd_with};
use crate::hosts::over_each_engine;
use crate::postgres_server;
use crate::shared_table::commands::{finish, lost, start, start_for_now};
use crate::shared_table::{Host, Log, SHORT, hosts, recorded};
use crate::world::World;
use crate::world::process::wait_until;
use crate::world::record::Events;

/// Writes an address with a password into the file that the configuration names.
fn put(world: &World, url: &str) {
    let file = world.runtime().join("address");
    fs::write(&file, url).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
}

fn configure(world: &World, ttl: &str) {
    let config = format!("[engine]\nurl_file = \"address\"\nhost = \"a\"\nttl = \"{ttl}\"\n");
    fs::write(world.runtime().join("canal.toml"), config).unwrap();
}

fn guarded() -> Etcd {
    let quick = ["--heartbeat-interval=50", "--election-timeout=500", "--bcrypt-cost=4"];
    let mut server = start_etcd_with(&quick);
    for args in [
        &["user", "add", "root:r"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "ci:old"],
        &["role", "add", "canal"],
        &["role", "grant-permission", "canal", "--prefix=true", "readwrite", "/canal/"],
        &["user", "grant-role", "ci", "canal"],
        &["auth", "enable"],
    ] {
        server.ctl_ok(args);
    }
    server.ctl = vec!["--user=root:r".to_owned()];
    server
}

fn daemon_log(world: &World) -> String {
    fs::read_to_string(world.runtime().join("daemon.log")).unwrap_or_default()
}

#[test]
fn a_password_that_is_changed_ends_no_command_and_is_read_again() {
    if !installed() {
        return;
    }
    let server = guarded();
    let address = |password: &str| format!("etcd://ci:{password}@{}/canal", server.endpoint());
    let log = Log::in_etcd(&server.endpoint(), None);
    let a = Host::new(&log, "a", "", None);
    put(&a.world, &address("old"));
    configure(&a.world, "60s");
    a.join();
    let holder = start_for_now(&a, "1");
    for args in [
        &["user", "delete", "ci"][..],
        &["user", "add", "ci:new"],
        &["user", "grant-role", "ci", "canal"],
    ] {
        server.ctl_ok(args);
    }
    // A request meets the fault before the next renewal does.
    let refused = a.world.canal(["run", "-n", "-k", "y", "--", "echo", "ran"]).end().code(125);
    assert!(refused.stderr.contains("refuses the user or the password"), "{refused:?}");
    a.until("unable");
    let engine = a.world.look().unwrap().engine.unwrap();
    assert!(engine.why.unwrap().contains("password") && engine.away_since.is_some());
    assert_eq!(Events::of(&a.world).ended(), 0, "its lock is held until the deadline");
    put(&a.world, &address("new"));
    a.until("member");
    assert_eq!(daemon_log(&a.world).matches("cannot use the engine").count(), 1);
    finish(&a, "1");
    holder.end().code(0);
    a.world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
}

#[test]
fn a_wrong_password_at_the_first_start_is_reported_at_once_and_can_be_corrected() {
    let Some(server) = postgres_server::start_postgres() else { return };
    server.make_database("locks");
    server.sql("ALTER ROLE locks PASSWORD 'right'");
    server.hba("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
    let url =
        |password: &str| format!("postgres://locks:{password}@127.0.0.1:{}/locks", server.port);
    let world = World::new();
    put(&world, &url("wrong"));
    configure(&world, "3s");
    let run = || world.canal(["run", "-k", "x", "--", "echo", "ran"]).end();
    let refused = run().code(125);
    assert!(refused.stderr.contains("password authentication failed"), "{refused:?}");
    let daemon = world.daemon_pid();
    put(&world, &url("right"));
    wait_until("it is let in", || {
        world.look().and_then(|status| status.engine).is_some_and(|it| it.state == "member")
    });
    assert_eq!(run().code(0).stdout, "ran\n");
    assert_eq!(world.daemon_pid(), daemon);
}

#[test]
fn a_host_waits_for_a_taken_name_and_does_not_keep_its_owner_out() {
    let Some(log) = crate::shared_table::etcd() else { return };
    let a = Host::new(&log, "a", "ttl = \"20s\"", None);
    a.join();
    let holder = start_for_now(&a, "1");
    let [twin, other] = [(); 2].map(|()| Host::new(&log, "a", "ttl = \"20s\"", None));
    // Each observes the host of that name for a TTL.
    let in_front = other.world.canal(["daemon"]).spawn();
    let behind = twin.world.canal(["run", "-k", "y", "--", "echo", "ran"]).spawn();
    for refused in [in_front, behind] {
        let refused = refused.end().code(125);
        assert!(refused.stderr.contains("another host has the name `a`"), "{refused:?}");
        let folder = a.world.runtime().display().to_string();
        assert!(refused.stderr.contains(&folder), "{refused:?}");
        assert!(refused.stderr.contains(", a member since "), "{refused:?}");
    }
    // A kill of the owner's daemon lets the next daemon take over at once.
    let pid = a.world.daemon_pid();
    crate::world::process::signal(pid, nix::sys::signal::Signal::SIGKILL);
    a.join();
    assert_ne!(a.world.daemon_pid(), pid);
    finish(&a, "1");
    holder.end().code(0);
    a.world.canal(["daemon", "--stop"]).end().code(0);
    twin.until("member");
}

#[test]
fn a_command_that_the_next_daemon_ends_exits_with_122_and_the_reason() {
    if !installed() {
        return;
    }
    let server = start_etcd();
    let log = Log::in_etcd(&server.endpoint(), None);
    let a = Host::new(&log, "a", "ttl = \"60s\"", None);
    a.join();
    let body = recorded("while :; do sleep 0.1; done");
    let args = ["run", "--no-start", "-k", "x", "--", "sh", "-c", &body, "sh", "1"];
    let holder = a.world.canal(args).spawn();
    wait_until("it runs", || Events::of(&a.world).started() == ["1"]);
    a.world.kill_daemon_quietly();
    server.ctl_ok(&["del", "--prefix", "/"]);
    a.join();
    lost(holder, "this host (a) was declared gone");
}

#[test]
fn a_daemon_is_not_replaced_by_a_daemon_with_a_taken_name() {
    let Some(log) = crate::shared_table::etcd() else { return };
    let [a, b] = hosts(&log);
    let (pid, other) = (a.world.daemon_pid(), b.world.daemon_pid());
    let refused = a.world.canal(["daemon", "--replace", "--host", "b"]).end().code(125);
    assert!(refused.stderr.contains("another host has the name `b`"), "{refused:?}");
    assert_eq!((a.world.daemon_pid(), b.world.daemon_pid()), (pid, other));
    b.world.canal(["daemon", "--stop"]).end().code(0);
    a.world.canal(["daemon", "--replace", "--host", "b"]).end().code(0);
    wait_until("it has the name", || {
        a.world.look().and_then(|status| status.engine).is_some_and(|it| it.host == "b")
    });
    a.until("member");
}

#[test]
fn a_daemon_is_not_replaced_by_a_daemon_that_cannot_work() {
    let Some(log) = crate::shared_table::postgres() else { return };
    let a = Host::new(&log, "a", "ttl = \"20s\"", None);
    a.join();
    let (holder, pid) = (start_for_now(&a, "1"), a.world.daemon_pid());
    let config = a.world.runtime().join("canal.toml");
    let good = fs::read_to_string(&config).unwrap();
    for (bad, says) in [
        (good.replacen("\"\n", "nowhere\"\n", 1), "does not exist"),
        (good.replacen("\"\n", "?canal_schema=A\"\n", 1), "the address of the engine"),
        ("engine = \"etcd://127.0.0.1:1\"\n".to_owned(), "cannot use "),
        (String::new(), "hold an engine's locks"),
        ("[engine\n".to_owned(), "canal.toml"),
    ] {
        fs::write(&config, &bad).unwrap();
        let refused = a.world.canal(["daemon", "--replace"]).end().code(125);
        assert!(refused.stderr.contains(says), "{bad}: {refused:?}");
        assert_eq!(a.world.daemon_pid(), pid);
    }
    fs::write(&config, &good).unwrap();
    let b = Host::new(&log, "b", "ttl = \"20s\"", None);
    b.join();
    let refused = a.world.canal(["daemon", "--replace", "--host", "b"]).end().code(125);
    assert!(refused.stderr.contains("another host has the name `b`"), "{refused:?}");
    assert!(refused.stderr.contains("the running daemon is unchanged"), "{refused:?}");
    assert_eq!(a.world.daemon_pid(), pid);
    b.until("member");
    wait_until("the others show two hosts", || {
        b.world.look().is_some_and(|status| status.hosts.len() == 2)
    });
    a.world.canal(["daemon", "--replace"]).end().code(0);
    wait_until("it is replaced", || {
        a.world.look().is_some_and(|status| status.daemon.pid.cast_signed() != pid)
    });
    a.until("member");
    finish(&a, "1");
    holder.end().code(0);
}

#[test]
fn a_host_joins_a_full_etcd_once_there_is_room() {
    if !installed() {
        return;
    }
    let server = start_etcd_with(&[
        "--quota-backend-bytes=4000000",
        "--heartbeat-interval=50",
        "--election-timeout=500",
    ]);
    server.fill();
    let log = Log::in_etcd(&server.endpoint(), None);
    let a = Host::new(&log, "a", "ttl = \"3s\"", None);
    // A request that may wait does so; the daemon refuses the other one with the reason.
    let waiter = a.world.canal(["run", "-k", "y", "--", "true"]).spawn();
    let refused = a.world.canal(["run", "-n", "-k", "x", "--", "echo", "ran"]).end().code(125);
    assert!(refused.stderr.contains("etcd is out of space"), "{refused:?}");
    assert!(refused.stderr.contains("hint: make room with"), "{refused:?}");
    server.make_room();
    a.until("member");
    waiter.end().code(0);
    a.world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
}

#[test]
fn a_member_with_a_wrong_certificate_ends_nothing_while_the_others_are_away() {
    if !installed() {
        return;
    }
    let (trusted, strange) = (Certificates::new(), Certificates::new());
    let files = [&trusted, &trusted, &strange].map(|it| it.sign("127.0.0.1"));
    let mut members = start_etcd_cluster_tls(&files);
    let log = Log::in_cluster_tls(&members, &trusted.file("ca.pem"));
    // On one host commands outlive the test; on the other they reach their deadline.
    let a = Host::new(&log, "a", "ttl = \"10m\"\nrenewal = \"500ms\"", None);
    let b = Host::new(&log, "b", SHORT, Some(&a.world));
    a.join();
    b.join();
    let body = recorded("while [ ! -e finish.1 ]; do sleep 0.1; done");
    let holder = a.world.canal(["run", "-k", "y", "--", "sh", "-c", &body, "sh", "1"]).spawn();
    let mortal = start(&b, "2");
    wait_until("both run", || Events::of(&a.world).started().len() == 2);
    let (good, _bad) = members.split_at_mut(2);
    good.iter_mut().for_each(Etcd::kill);
    wait_until("the engine is out of reach", || a.state() != "member");
    let refused = a.world.canal(["run", "-n", "-k", "z", "--", "true"]).end().code(125);
    assert!(refused.stderr.contains("the engine") || refused.stderr.contains("its engine"));
    // The command ends at its deadline, whatever the untrusted member answers.
    lost(mortal, "canal last reached ");
    assert_eq!(Events::of(&a.world).ended(), 1, "the other one has its lock until its deadline");
    // Its peers trust the untrusted member. Together with it, one trusted member forms a majority.
    good[0].start();
    a.until("member");
    b.until("member");
    finish(&a, "1");
    holder.end().code(0);
    b.world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
}

over_each_engine!(
    a_process_of_another_host_is_not_ended_from_here,
    a_question_that_the_engine_does_not_answer_promises_nothing,
);

fn a_process_of_another_host_is_not_ended_from_here(log: &Log) {
    let [a, b] = hosts(log);
    let holder = start_for_now(&b, "on-b");
    a.world.until_held("x", 1);
    let ended = a.world.canal(["kill", "--yes", "x"]).end().code(125);
    // A supervisor stays with the command.
    let pid = b.world.key("x").holders[0].pid;
    let says = format!("canal: process {pid} is running on host {}\n", b.label());
    assert!(ended.stderr.contains(&says), "{ended:?}");
    assert!(ended.stderr.ends_with("hint: run `canal kill` there\n"), "{ended:?}");
    // A request here does not supersede it either, nor those that wait.
    let waiter = a.world.waiter("x", &[], &["true"]);
    let supersede = ["run", "-k", "x", "--supersede", "running", "--", "true"];
    let ended = a.world.canal(supersede).end().code(125);
    assert!(ended.stderr.contains(&says), "{ended:?}");
    assert_eq!((b.world.held("x"), a.world.key("x").waiting), (1, 1), "it still runs");
    finish(&b, "on-b");
    waiter.end().code(0);
    holder.end().code(0);
}

fn a_question_that_the_engine_does_not_answer_promises_nothing(log: &Log) {
    let [a] = hosts(log);
    a.proxy.cut();
    a.until("away");
    let ended = a.world.canal(["test", "x"]).end().code(125);
    assert!(ended.stderr.contains("engine"), "{ended:?}");
    assert!(!ended.stderr.contains("still queued"), "nothing is to be done: {ended:?}");
    a.proxy.mend();
    a.join();
}
