//! etcd is compacted, and the log is truncated after a snapshot, beyond what a host has read.

use std::time::Instant;

use serde_json::{Value, json};

use crate::etcd_server::{self, Etcd};
use crate::postgres_server;
use crate::shared_table::commands::{
    finish, lost, never_both, queue, release, start, start_for_now,
};
use crate::shared_table::{
    Host, Log, PATIENT, SNAPSHOT_BATCHES, hosts, mortal_and_patient_hosts, until_idle,
};
use crate::world::peer::Peer;
use crate::world::process::{BOUND, Proc};

fn etcd() -> Option<(Etcd, Log)> {
    let server = etcd_server::installed().then(etcd_server::start_etcd)?;
    let log = Log::in_etcd(&server.endpoint(), None);
    Some((server, log))
}

/// Makes changes that a host misses, then removes all earlier revisions from etcd.
fn compact(server: &Etcd, host: &Host) {
    for n in 0..5 {
        let key = format!("other/{n}");
        host.world.canal(["run", "-k", &key, "--", "true"]).end().code(0);
    }
    server.ctl_ok(&["compact", "--physical", &server.revision().to_string()]);
    server.ctl_ok(&["defrag"]);
}

fn all_end(others: impl IntoIterator<Item = Proc>) {
    for other in others {
        other.end().code(0);
    }
}

/// A way to separate a host from etcd.
struct Parting {
    how: &'static str,
    away: fn(&Host),
    back: fn(&Host),
}

const PARTINGS: [Parting; 3] = [
    Parting { how: "cut off", away: |host| host.proxy.cut(), back: |host| host.proxy.mend() },
    Parting {
        how: "silent",
        away: |host| host.proxy.fall_silent(),
        back: |host| host.proxy.mend(),
    },
    Parting {
        how: "frozen",
        away: |host| {
            host.freeze();
        },
        back: |host| Host::go_on(host.frozen()),
    },
];

#[test]
fn etcd_is_compacted_while_commands_run_and_wait_on_several_hosts() {
    let Some((server, log)) = etcd() else { return };
    let [a, b, c] = hosts(&log);
    let all = [&a, &b, &c];
    let holder = start_for_now(&a, "1");
    let mut others: Vec<Proc> = Vec::new();
    for (host, name) in [(&b, "2"), (&c, "3"), (&a, "4")] {
        others.push(queue(host, &all, name, others.len() as u64 + 1));
        compact(&server, &b);
    }
    // Daemons that reread everything: that of a holder and that of a waiter.
    for host in [&a, &c] {
        host.world.kill_daemon();
        compact(&server, &b);
        host.join();
        host.world.until_waiting("x", 3);
    }
    // A host that has never been there before.
    let d = Host::new(&log, "d", PATIENT, Some(&a.world));
    d.join();
    assert_eq!((d.world.held("x"), d.world.key("x").waiting), (1, 3));
    others.push(queue(&d, &[&a, &b, &c, &d], "5", 4));
    compact(&server, &b);
    finish(&a, "1");
    holder.end().code(0);
    all_end(others);
    never_both(&a, &["1", "2", "3", "4", "5"]);
    until_idle(&[a, b, c, d]);
}

#[test]
fn etcd_is_compacted_while_a_host_is_away_for_less_than_its_ttl() {
    let Some((server, _)) = etcd() else { return };
    for Parting { how, away, back } in PARTINGS {
        let log = Log::in_etcd(&server.endpoint(), None);
        let [a, b, c] = hosts(&log);
        let holder = start_for_now(&a, "1");
        let mut others = vec![queue(&a, &[&a, &b, &c], "2", 1)];
        away(&a);
        others.push(queue(&b, &[&b, &c], "3", 2));
        compact(&server, &b);
        others.push(queue(&c, &[&b, &c], "4", 3));
        compact(&server, &c);
        back(&a);
        a.world.until_waiting("x", 3);
        finish(&a, "1");
        holder.end().code(0);
        all_end(others);
        never_both(&a, &["1", "2", "3", "4"]);
        let said = std::fs::read_to_string(a.world.runtime().join("daemon.log")).unwrap();
        assert!(!said.contains("lost all holds of this host"), "{how}: {said}");
        until_idle(&[a, b, c]);
    }
}

#[test]
fn etcd_is_compacted_while_a_host_is_away_for_longer_than_its_ttl() {
    let Some((server, _)) = etcd() else { return };
    for Parting { how, away, back } in PARTINGS {
        let log = Log::in_etcd(&server.endpoint(), None);
        let [a, b, c] = mortal_and_patient_hosts(&log);
        let holder = start(&a, "1");
        let mine = queue(&a, &[&a, &b, &c], "4", 1);
        let others = [queue(&b, &[&b, &c], "2", 2), queue(&c, &[&b, &c], "3", 3)];
        away(&a);
        compact(&server, &b);
        lost(holder, "canal last reached ");
        // The waiter of this host ends with the host: it must not get a lock without being able to
        // learn of it.
        all_end(others);
        compact(&server, &c);
        back(&a);
        a.until("member");
        mine.end().code(0);
        never_both(&a, &["1", "2", "3", "4"]);
        let said = std::fs::read_to_string(a.world.runtime().join("daemon.log")).unwrap();
        assert!(said.contains("lost all holds of this host"), "{how}: {said}");
        until_idle(&[a, b, c]);
    }
}

/// With this many batches a host could store a snapshot: a quarter more than the number after which
/// hosts make one.
const BATCHES: usize = SNAPSHOT_BATCHES + SNAPSHOT_BATCHES / 4 + 100;

/// How often to renew a lease between two checks whether the batches are enough. A host that may be
/// away for hours needs five snapshot intervals.
const BETWEEN_LOOKS: usize = 100;

/// A lease of a host. Each renewal makes a batch.
struct Lease {
    peer: Peer,
    handle: String,
}

impl Lease {
    fn of(host: &Host, key: &str) -> Self {
        let args = ["acquire", "-k", key, "--ttl", "10h", "--json"];
        let lease = host.world.canal(args).end().code(0).json();
        let handle = lease["handle"].as_str().unwrap().to_owned();
        Self { peer: Peer::connect(&host.world), handle }
    }

    /// Renews it until the daemon answers: on a busy machine the engine sometimes takes longer than
    /// the daemon waits. The change is in flight anyway, but only an answer confirms that it is in
    /// the log.
    fn renew(&mut self) {
        let begun = Instant::now();
        loop {
            let reply = self.peer.call("Renew", &json!({ "handle": self.handle })).unwrap();
            match reply.get("error").and_then(Value::as_str) {
                None => return,
                Some("io.canal.Lock.EngineAway") if begun.elapsed() < BOUND => {}
                Some(_) => panic!("{reply}"),
            }
        }
    }
}

/// Two hosts make enough batches to truncate the log, and more until `enough`.
fn much_happens(hosts: [&Host; 2], enough: impl Fn() -> bool + Sync) {
    let mut leases = hosts.map(|host| Lease::of(host, &format!("lease/{}", host.label())));
    std::thread::scope(|scope| {
        for lease in &mut leases {
            scope.spawn(|| {
                (0..BATCHES / 2).for_each(|_| lease.renew());
                while !enough() {
                    // The check takes several times the duration of a renewal.
                    (0..BETWEEN_LOOKS).for_each(|_| lease.renew());
                }
            });
        }
    });
    for (lease, host) in leases.iter().zip(hosts) {
        release(host, &["--handle", &lease.handle]);
    }
}

fn away_for_less_than_the_ttl(log: &Log) {
    let [a, b, c] = hosts(log);
    let holder = start_for_now(&b, "1");
    let all = [&a, &b, &c];
    let mut others = vec![queue(&c, &all, "2", 1), queue(&b, &all, "3", 2)];
    b.proxy.cut();
    others.push(queue(&a, &[&a, &c], "4", 3));
    much_happens([&a, &c], || true);
    b.proxy.mend();
    b.world.until_waiting("x", 3);
    b.until("member");
    finish(&b, "1");
    holder.end().code(0);
    all_end(others);
    never_both(&a, &["1", "2", "3", "4"]);
    until_idle(&[a, b, c]);
}

fn away_for_longer_than_the_ttl(log: &Log, is_cut_off: impl Fn() -> bool + Sync) {
    let [b, a, c] = mortal_and_patient_hosts(log);
    let all = [&a, &b, &c];
    let holder = start(&b, "1");
    let mine = queue(&b, &all, "5", 1);
    let others = [queue(&c, &all, "2", 2), queue(&a, &all, "3", 3)];
    b.proxy.cut();
    much_happens([&a, &c], is_cut_off);
    lost(holder, "canal last reached ");
    all_end(others);
    let holder = start_for_now(&a, "4");
    b.proxy.mend();
    b.until("member");
    b.world.until_waiting("x", 1);
    // A host that has never been there before, and restarted daemons.
    let d = Host::new(log, "d", PATIENT, Some(&a.world));
    d.join();
    for host in [&a, &b] {
        host.world.kill_daemon();
        host.join();
    }
    d.world.until_held("x", 1);
    // On a busy machine the membership of `b` may end before its next daemon takes it over. Then
    // the daemon requests the waiter again.
    d.world.until_waiting("x", 1);
    finish(&a, "4");
    holder.end().code(0);
    mine.end().code(0);
    never_both(&a, &["1", "2", "3", "4", "5"]);
    until_idle(&[a, b, c, d]);
}

#[test]
fn a_host_back_within_its_ttl_reads_the_snapshot_and_the_later_log_of_etcd() {
    let Some((_server, log)) = etcd() else { return };
    away_for_less_than_the_ttl(&log);
}

#[test]
fn a_host_back_within_its_ttl_reads_the_snapshot_and_the_later_log_of_postgres() {
    let Some(server) = postgres_server::start_postgres() else { return };
    away_for_less_than_the_ttl(&Log::in_postgres(&server));
}

#[test]
fn a_host_back_after_its_ttl_finds_the_log_in_etcd_cut_off_and_compacted() {
    let Some((server, log)) = etcd() else { return };
    let pointer = format!("/{}/snapshot/pointer", log.name());
    let is_cut_off = || {
        // The other host may have just compacted it.
        server.ctl(&["compact", &server.revision().to_string()]);
        !server.ctl_ok(&["get", &pointer]).is_empty()
    };
    away_for_longer_than_the_ttl(&log, is_cut_off);
}

#[test]
fn a_host_back_after_its_ttl_finds_the_log_in_postgres_cut_off() {
    let Some(server) = postgres_server::start_postgres() else { return };
    let log = Log::in_postgres(&server);
    let is_cut_off = || server.sql_in(log.name(), "SELECT snapshot FROM canal.head") != "0";
    away_for_longer_than_the_ttl(&log, is_cut_off);
}
