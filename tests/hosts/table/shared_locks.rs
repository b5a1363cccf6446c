//! Locks that several hosts share, and the order of their waiters.

use canal::sys::pidfd::Pidfd;
use serde_json::{Value, json};

use crate::hosts::over_each_engine;
use crate::shared_table::commands::{answered, engine_was_slow, release};
use crate::shared_table::{Log, hosts, recorded, until_idle};
use crate::world::peer::Peer;
use crate::world::process::{Proc, wait_until};
use crate::world::record::Events;

over_each_engine!(
    a_lock_is_held_on_one_host_only,
    waiters_are_served_in_order_over_all_hosts,
    a_wait_that_times_out_is_75_and_leaves_no_waiter,
    a_lock_is_acquired_for_a_process_and_released_from_it,
    writers_keep_readers_out_on_every_host,
    a_deadlock_over_hosts_is_refused_with_the_cycle,
    a_resize_reaches_waiters_on_other_hosts,
    status_names_hosts_and_engine,
    a_killed_holder_frees_its_lock_for_other_hosts,
    a_token_is_greater_than_all_before_it_on_any_host,
    a_lease_is_renewed_through_any_host,
    a_host_that_is_behind_knows_a_lease_that_was_granted_elsewhere,
    force_breaks_a_hold_of_another_host,
    a_grant_that_ends_before_its_confirmation_is_in_the_log_is_not_told,
);

fn a_lock_is_held_on_one_host_only(log: &Log) {
    let [a, b] = hosts(log);
    let holder = a.world.holder(&["-k", "x"]);
    b.world.until_held("x", 1);
    let busy = answered(&b, ["run", "-n", "-k", "x", "--", "echo", "ran"]).code(75);
    assert!(busy.stdout.is_empty(), "{busy:?}");
    assert!(busy.stderr.contains("on a"), "{busy:?}");
    let waiter = b.world.waiter("x", &[], &["echo", "on"]);
    assert!(waiter.stdout().is_empty());
    holder.finish().code(0);
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    until_idle(&[a, b]);
}

fn waiters_are_served_in_order_over_all_hosts(log: &Log) {
    let [a, b] = hosts(log);
    let holder = a.world.holder(&["-k", "x"]);
    b.world.until_held("x", 1);
    let body = recorded(":");
    let names = ["1", "2", "3", "4", "5", "6"];
    let waiters: Vec<Proc> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let host = if at % 2 == 0 { &a } else { &b };
            let args = ["run", "-k", "x", "--", "sh", "-c", &body, "sh", name];
            let waiter = host.world.canal(args).spawn();
            let other = if at % 2 == 0 { &b } else { &a };
            host.world.until_waiting("x", at as u64 + 1);
            other.world.until_waiting("x", at as u64 + 1);
            waiter
        })
        .collect();
    holder.finish().code(0);
    for waiter in waiters {
        waiter.end().code(0);
    }
    let events = Events::of(&a.world);
    assert_eq!(events.started(), names);
    assert_eq!(events.most_at_once(), 1);
    until_idle(&[a, b]);
}

fn a_wait_that_times_out_is_75_and_leaves_no_waiter(log: &Log) {
    let [a, b] = hosts(log);
    let holder = a.world.holder(&["-k", "x"]);
    b.world.until_held("x", 1);
    let over = b.world.canal(["run", "-w", "0.3", "-k", "x", "--", "echo", "ran"]).end().code(75);
    assert!(over.stdout.is_empty() && over.stderr.contains("timed out"), "{over:?}");
    a.world.until_waiting("x", 0);
    holder.finish().code(0);
    b.world.until_held("x", 0);
    answered(&b, ["run", "-n", "-k", "x", "--", "true"]).code(0);
    until_idle(&[a, b]);
}

fn a_lock_is_acquired_for_a_process_and_released_from_it(log: &Log) {
    let [a, b] = hosts(log);
    let script = "canal acquire --pid $$ -k x --json || exit; read line; canal release x; read end";
    let (reader, writer) = std::io::pipe().unwrap();
    let owner = a.world.sh(script).stdin(reader).spawn();
    b.world.until_held("x", 1);
    wait_until("the answer is printed", || owner.stdout().ends_with('\n'));
    let grant: Value = serde_json::from_str(&owner.stdout()).unwrap();
    assert_eq!(grant["owner"]["pid"].as_i64(), Some(owner.pid().into()));
    answered(&b, ["run", "-n", "-k", "x", "--", "true"]).code(75);
    let mut writer = writer;
    std::io::Write::write_all(&mut writer, b"\n").unwrap();
    b.world.until_held("x", 0);
    answered(&b, ["run", "-n", "-k", "x", "--", "true"]).code(0);
    drop(writer);
    owner.end();
    until_idle(&[a, b]);
}

fn writers_keep_readers_out_on_every_host(log: &Log) {
    let [a, b] = hosts(log);
    let lock = ["run", "--read", "repo", "--", "cat"];
    let reader = a.world.canal(lock).stdin(std::process::Stdio::piped()).spawn();
    wait_until("it is read", || !b.world.key("repo").holders.is_empty());
    answered(&b, ["run", "-n", "--read", "repo/x", "--", "true"]).code(0);
    answered(&b, ["run", "-n", "--write", "repo/x", "--", "true"]).code(75);
    let writer = b.world.canal(["run", "--write", "repo/x", "--", "echo", "written"]).spawn();
    wait_until("it waits", || a.world.key("repo/x").waiting == 1);
    reader.finish().code(0);
    assert_eq!(writer.end().code(0).stdout, "written\n");
    until_idle(&[a, b]);
}

fn a_deadlock_over_hosts_is_refused_with_the_cycle(log: &Log) {
    let [a, b] = hosts(log);
    let inner = |own: &str, other: &str| {
        format!(
            "touch {own}; while [ ! -e {other} ]; do sleep 0.01; done; canal run -k {other} -- true"
        )
    };
    let one = a.world.canal(["run", "-k", "one", "--", "sh", "-c", &inner("one", "two")]).spawn();
    let two = b.world.canal(["run", "-k", "two", "--", "sh", "-c", &inner("two", "one")]).spawn();
    let ends = [one.end(), two.end()];
    let mut codes: Vec<_> = ends.iter().map(|end| end.code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [Some(0), Some(75)], "{ends:?}");
    let victim = ends.iter().find(|end| end.code == Some(75)).unwrap();
    assert!(victim.stderr.contains("deadlock"), "{victim:?}");
    until_idle(&[a, b]);
}

fn a_resize_reaches_waiters_on_other_hosts(log: &Log) {
    let [a, b] = hosts(log);
    answered(&a, ["resize", "x", "--slots", "1"]).code(0);
    wait_until("the other host knows", || b.world.key("x").capacity == Some(1));
    let holder = a.world.holder(&["-k", "x"]);
    let waiter = b.world.waiter("x", &[], &["echo", "in"]);
    answered(&a, ["resize", "x", "--slots", "2"]).code(0);
    assert_eq!(waiter.end().code(0).stdout, "in\n");
    holder.finish().code(0);
    let forgot = answered(&b, ["resize", "x", "--forget"]).code(0);
    assert!(forgot.stderr.is_empty() || !forgot.stderr.contains("error"), "{forgot:?}");
    wait_until("it is forgotten", || !a.world.key("x").stored);
}

fn status_names_hosts_and_engine(log: &Log) {
    let [a, b] = hosts(log);
    let holder = a.world.holder(&["-k", "x"]);
    b.world.until_held("x", 1);
    let status = b.world.status();
    let engine = status.engine.unwrap();
    assert_eq!(
        (engine.state.as_str(), engine.host.as_str(), engine.ttl_ms),
        ("member", "b", 36_000_000)
    );
    assert!(engine.renewed.is_some() && engine.stops.is_some() && engine.id.is_some());
    let hosts: Vec<_> = status.hosts.iter().map(|it| (it.host.as_str(), it.here)).collect();
    assert_eq!(hosts, [("a", false), ("b", true)]);
    let held = &status.keys[0].holders[0];
    assert_eq!((held.host.as_deref(), held.state.as_deref()), (Some("a"), None));
    let here = &a.world.key("x").holders[0];
    assert_eq!((here.host.as_deref(), here.state.as_deref()), (Some("a"), Some("running")));
    let text = b.world.canal(["status"]).end().code(0).stdout;
    assert!(text.contains("host b, one of 2 hosts") && text.contains("on host a"), "{text}");
    let text = b.world.canal(["status", "-v"]).end().code(0).stdout;
    assert!(text.contains("b (this one)") && text.contains("renewed"), "{text}");
    holder.finish().code(0);
}

fn a_killed_holder_frees_its_lock_for_other_hosts(log: &Log) {
    let [a, b] = hosts(log);
    let holder = a.world.holder(&["-k", "x"]);
    b.world.until_held("x", 1);
    let waiter = b.world.waiter("x", &[], &["echo", "on"]);
    let pid = a.world.key("x").holders[0].pid;
    crate::world::process::signal(pid.cast_signed(), nix::sys::signal::Signal::SIGKILL);
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    drop(holder);
    until_idle(&[a, b]);
}

fn a_token_is_greater_than_all_before_it_on_any_host(log: &Log) {
    let [a, b] = hosts(log);
    // A new log begins above every token that a journal has assigned.
    let mut last = 1_700_000_000 << 20;
    for round in 0..12 {
        let host = if round % 2 == 0 { &a } else { &b };
        if round % 5 == 4 {
            host.world.kill_daemon();
        }
        let ran = host.world.canal(["run", "-k", "x", "-c", "echo $CANAL_TOKEN"]).end().code(0);
        let token: u64 = ran.stdout.trim().parse().unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

fn a_lease_is_renewed_through_any_host(log: &Log) {
    let [a, b] = hosts(log);
    let lease =
        a.world.canal(["acquire", "-k", "x", "--ttl", "30m", "--json"]).end().code(0).json();
    let handle = lease["handle"].as_str().unwrap();
    b.world.until_held("x", 1);
    answered(&b, ["renew", "--handle", handle]).code(0);
    release(&b, &["--handle", handle]);
    a.world.until_held("x", 0);
    answered(&b, ["renew", "--handle", handle]).code(122);
    until_idle(&[a, b]);
}

fn a_host_that_is_behind_knows_a_lease_that_was_granted_elsewhere(log: &Log) {
    let [a, b] = hosts(log);
    for command in ["renew", "release"] {
        b.proxy.cut();
        let lease = ["acquire", "-k", "x", "--ttl", "30m", "--json"];
        let lease = a.world.canal(lease).end().code(0).json();
        let handle = lease["handle"].as_str().unwrap();
        let asked = b.world.canal([command, "--handle", handle]).spawn();
        // It asks before the other host can have read about the lease.
        wait_until("it is asked, or told that the engine is slow", || {
            matches!(crate::world::process::state(asked.pid()), Some('S' | 'Z'))
        });
        b.proxy.mend();
        let ended = asked.end();
        match (engine_was_slow(&ended), command) {
            (true, "renew") => drop(answered(&b, ["renew", "--handle", handle]).code(0)),
            (true, _) => release(&b, &["--handle", handle]),
            (false, _) => drop(ended.code(0)),
        }
        if command == "renew" {
            release(&a, &["--handle", handle]);
        }
        a.world.until_held("x", 0);
    }
    let unknown = "00112233445566778899aabbccddeeff";
    answered(&b, ["renew", "--handle", unknown]).code(122);
    answered(&b, ["release", "--handle", unknown]).code(122);
    until_idle(&[a, b]);
}

fn force_breaks_a_hold_of_another_host(log: &Log) {
    let [a, b] = hosts(log);
    let holder = a.world.holder(&["-k", "x"]);
    b.world.until_held("x", 1);
    let token = b.world.key("x").holders[0].token.to_string();
    release(&b, &["--force", "--token", &token]);
    answered(&b, ["run", "-n", "-k", "x", "--", "true"]).code(0);
    holder.finish();
    until_idle(&[a, b]);
}

fn a_grant_that_ends_before_its_confirmation_is_in_the_log_is_not_told(log: &Log) {
    let [a, b] = hosts(log);
    let owner = a.world.sh("exec sleep 600").spawn();
    let pidfd = Pidfd::open(owner.child.id()).unwrap();
    let mut client = Peer::connect(&a.world);
    client.ask(7, &json!([{ "key": "x", "count": 1 }]), false, Some(&pidfd));
    let granted = client.reply().unwrap();
    assert!(granted.get("error").is_none(), "{granted}");
    b.world.until_held("x", 1);
    // The confirmation remains in flight.
    a.proxy.fall_silent_one_way(true);
    client.send("Confirm", &json!({ "tag": format!("{:032x}", 7) }), false, None).unwrap();
    let token = b.world.key("x").holders[0].token.to_string();
    release(&b, &["--force", "--token", &token]);
    a.proxy.mend();
    let told = client.reply().unwrap();
    assert!(told.get("error").is_some(), "{told}");
    until_idle(&[a, b]);
}
