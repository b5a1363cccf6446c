//! An engine restored from a backup does not know later grants. A command with such a grant must
//! not overlap with the next holder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::etcd_server::{self, Etcd};
use crate::postgres_server;
use crate::shared_table::{Host, Log, hosts_timed};
use crate::world::process::wait_until;

/// An engine that can be returned to an earlier state.
enum Engine {
    Etcd(Box<Etcd>),
    Postgres(postgres_server::Server),
}

impl Engine {
    fn data(&self) -> PathBuf {
        match self {
            Self::Etcd(server) => server.data(),
            Self::Postgres(server) => server.data(),
        }
    }

    /// Works on the files of the engine while it is stopped.
    fn offline(&mut self, work: impl FnOnce(&Path)) {
        match self {
            Self::Etcd(server) => server.stop(),
            Self::Postgres(server) => server.halt(),
        }
        work(&self.data());
        match self {
            Self::Etcd(server) => server.start(),
            Self::Postgres(server) => server.start(),
        }
    }

    fn back_up(&mut self) {
        self.offline(|data| copy(data, &data.with_extension("backup")));
    }

    fn restore(&mut self) {
        self.offline(|data| {
            fs::remove_dir_all(data).unwrap();
            copy(&data.with_extension("backup"), data);
        });
    }
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[test]
fn holders_that_a_restored_etcd_does_not_know_are_dead_before_their_host_asks_again() {
    if etcd_server::installed() {
        let server = etcd_server::start_etcd();
        let log = Log::in_etcd(&server.endpoint(), None);
        survivors_are_killed(&mut Engine::Etcd(Box::new(server)), &log);
    }
}

#[test]
fn holders_that_a_restored_postgresql_does_not_know_are_dead_before_their_host_asks_again() {
    if let Some(server) = postgres_server::start_postgres() {
        let log = Log::in_postgres(&server);
        survivors_are_killed(&mut Engine::Postgres(server), &log);
    }
}

/// After lost history, no host grants anything for 1.1 TTL. The TTL is long enough to restore the
/// engine within it.
const TIMES: &str = "ttl = \"30s\"\nrenewal = \"500ms\"";

fn survivors_are_killed(engine: &mut Engine, log: &Log) {
    let [a, b] = hosts_timed(log, TIMES);
    engine.back_up();
    [&a, &b].into_iter().for_each(|host| host.until("member"));
    let command = a.world.holder(&["--no-start", "-k", "x"]);
    let script = "canal acquire -q --pid $$ -k p || exit; echo told; while :; do sleep 0.05; done";
    let owner = a.world.sh(script).spawn();
    wait_until("it has printed the grant", || owner.stdout().contains("told"));
    let holder = |key| a.world.key(key).holders.remove(0);
    let pids = ["x", "p"].map(|key| holder(key).pid);
    let told = ["x", "p"].map(|key| holder(key).token).into_iter().max().unwrap();
    for host in [&a, &b] {
        host.world.canal(["daemon", "--stop"]).end().code(0);
    }
    engine.restore();
    b.join();
    let others: Vec<_> =
        (0..3).map(|n| b.world.canal(["run", "-k", &format!("b{n}"), "--", "true"])).collect();
    a.world.status();
    // The next grant on that host follows their end.
    let look =
        pids.map(|pid| format!("! grep -qs '^State:.[^ZX]' /proc/{pid}/status")).join(" && ");
    let look = format!("{look} && test \"$CANAL_TOKEN\" -gt {told}");
    a.world.canal(["run", "-k", "y", "--", "sh", "-c", &look]).end().code(0);
    for other in others {
        other.end().code(0);
    }
    let said = fs::read_to_string(a.world.runtime().join("daemon.log")).unwrap();
    assert!(said.contains("joined") && said.contains("adopted"), "{said}");
    assert_eq!(owner.end().signal, Some(9), "{said}");
    drop(command);
    until_empty(&a);
}

fn until_empty(host: &Host) {
    let owners = host.world.runtime().join("owners");
    wait_until("no owner is recorded", || {
        let text = fs::read_to_string(&owners).unwrap();
        text.matches("\"told\"").count() == text.matches("\"ended\"").count()
    });
}
