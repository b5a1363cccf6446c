//! Engines that lose entries which they acknowledged: a base backup is restored, a lagging standby
//! is promoted, a snapshot of etcd is restored. Commands granted in the lost part are still
//! running.

use std::fs;
use std::path::PathBuf;

use crate::etcd_server::{self, Etcd};
use crate::postgres_server::{self, Server};
use crate::shared_table::{Host, Log, SHORT, hosts_timed};
use crate::world::process::{Ended, Proc, wait_until};

/// An engine that loses entries.
trait Forgets {
    /// From now on the engine loses every entry that it acknowledges.
    fn mark(&mut self);

    /// Returns the engine to the state of [`Self::mark`].
    fn forget(&mut self);
}

/// A PostgreSQL server whose base backup is restored.
struct Backup(Server);

impl Forgets for Backup {
    fn mark(&mut self) {
        self.0.back_up();
    }

    fn forget(&mut self) {
        self.0.restore();
    }
}

/// A server whose standby takes over its address without having received everything.
struct Lagging {
    primary: Server,
    standby: Option<Server>,
}

impl Forgets for Lagging {
    fn mark(&mut self) {
        let mut standby = self.primary.standby().unwrap();
        standby.has_replayed(&self.primary);
        standby.halt();
        standby.port = self.primary.port;
        self.standby = Some(standby);
    }

    fn forget(&mut self) {
        self.primary.halt();
        let standby = self.standby.as_mut().unwrap();
        standby.start();
        standby.sql("SELECT pg_promote()");
    }
}

/// An etcd whose snapshot is restored.
struct Snapshot {
    etcd: Etcd,
    file: PathBuf,
}

impl Forgets for Snapshot {
    fn mark(&mut self) {
        self.etcd.save(&self.file);
    }

    fn forget(&mut self) {
        self.etcd.restore(&self.file);
    }
}

/// What happens to the hosts of the lost locks before the engine loses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    /// They stay up and connected.
    Up,
    /// They cannot reach the engine until other hosts have got their locks.
    Cut,
    /// Their daemons are stopped, and start once other hosts have got their locks.
    Stopped,
    /// Their daemons are killed, and start right after the engine.
    Restarted,
}

macro_rules! whatever_happens_meanwhile {
    ($($name:ident: $meanwhile:ident),* $(,)?) => {
        $(mod $name {
            use super::Meanwhile;

            #[test]
            fn when_a_base_backup_is_restored() {
                super::when_a_base_backup_is_restored(Meanwhile::$meanwhile);
            }

            #[test]
            fn when_a_standby_that_lags_is_promoted() {
                super::when_a_standby_that_lags_is_promoted(Meanwhile::$meanwhile);
            }

            #[test]
            fn when_a_snapshot_of_etcd_is_restored() {
                super::when_a_snapshot_of_etcd_is_restored(Meanwhile::$meanwhile);
            }
        })*
    };
}

whatever_happens_meanwhile!(
    a_lost_entry_gives_no_lock_to_two_holders_while_the_first_host_is_up: Up,
    a_lost_entry_gives_no_lock_to_two_holders_while_the_first_host_is_cut_off: Cut,
    a_lost_entry_gives_no_lock_to_two_holders_while_the_first_host_has_no_daemon: Stopped,
    a_lost_entry_gives_no_lock_to_two_holders_while_the_first_host_has_a_new_daemon: Restarted,
);

fn when_a_base_backup_is_restored(meanwhile: Meanwhile) {
    let Some(server) = postgres_server::start_postgres() else { return };
    let log = Log::in_postgres(&server);
    no_overlap_and_no_token_twice(&log, Backup(server), meanwhile);
}

fn when_a_standby_that_lags_is_promoted(meanwhile: Meanwhile) {
    let Some(primary) = postgres_server::start_postgres() else { return };
    let log = Log::in_postgres(&primary);
    no_overlap_and_no_token_twice(&log, Lagging { primary, standby: None }, meanwhile);
}

fn when_a_snapshot_of_etcd_is_restored(meanwhile: Meanwhile) {
    if !etcd_server::installed() {
        return;
    }
    let etcd = etcd_server::start_etcd();
    let log = Log::in_etcd(&etcd.endpoint(), None);
    let file = etcd.data().with_extension("saved");
    no_overlap_and_no_token_twice(&log, Snapshot { etcd, file }, meanwhile);
}

/// A shell command that records its token. The kernel is the witness of overlaps: the file
/// `KEY.held` is locked until the command and all its children have ended, however they end. `$1`
/// is the key.
fn witnessed(body: &str) -> String {
    format!(
        "exec 9>>\"$1.held\"; flock -n 9 || echo \"$1\" >>overlaps; \
         echo \"$CANAL_TOKEN\" >>tokens; {body}"
    )
}

fn run<'a>(host: &'a Host, key: &'a str, body: &str) -> crate::world::process::Cmd<'a> {
    host.world.canal(["run", "-k", key, "--", "sh", "-c", &witnessed(body), "sh", key])
}

/// Runs a command to its end. On a busy machine a host can lose the engine for longer than its
/// short TTL; then this runs the command again.
fn run_whole(host: &Host, key: &str) {
    wait_until("a command has run to its end", || match run(host, key, ":").end() {
        Ended { code: Some(0), .. } => true,
        Ended { code: Some(122), .. } | Ended { signal: Some(_), .. } => false,
        other => panic!("{other:?}"),
    });
}

/// Starts a command that keeps running, after all earlier ones have started. Like [`run_whole`], it
/// starts the command again if its host lost the engine before the command ran.
fn start(host: &Host, key: &str) -> Proc {
    let before = tokens(host).len();
    let begin = || run(host, key, "while :; do sleep 0.1; done").spawn();
    let mut holder = begin();
    wait_until("it runs", || {
        let runs = tokens(host).len() > before;
        if !runs && holder.has_ended() {
            holder = begin();
        }
        runs
    });
    holder
}

/// The tokens of all commands, in the order of their starts.
fn tokens(host: &Host) -> Vec<u64> {
    let text = fs::read_to_string(host.world.path("work").join("tokens")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// The restored engine knows one host but not the other. A third host has read none of the lost
/// part, and asks for the locks of both.
fn no_overlap_and_no_token_twice(log: &Log, mut engine: impl Forgets, meanwhile: Meanwhile) {
    let [known, other] = hosts_timed(log, SHORT);
    run_whole(&known, "before");
    other.world.canal(["daemon", "--stop"]).end().code(0);
    engine.mark();
    let new = Host::new(log, "new", SHORT, Some(&known.world));
    new.join();
    run_whole(&known, "after");
    let holders = [start(&known, "k"), start(&new, "n")];
    let forgotten = [&known, &new];
    for host in forgotten {
        match meanwhile {
            Meanwhile::Up => {}
            Meanwhile::Cut => host.proxy.cut(),
            Meanwhile::Stopped => {
                host.world.canal(["daemon", "--stop"]).end().code(0);
            }
            Meanwhile::Restarted => {
                host.world.kill_daemon_quietly();
            }
        }
    }
    engine.forget();
    if meanwhile == Meanwhile::Restarted {
        forgotten.into_iter().for_each(|host| drop(host.world.status()));
    }
    for key in ["n", "k"] {
        run_whole(&other, key);
    }
    let overlaps = fs::read_to_string(known.world.path("work").join("overlaps"));
    assert!(overlaps.is_err(), "{overlaps:?} {:?}", tokens(&known));
    forgotten.into_iter().for_each(|host| host.proxy.mend());
    drop(holders);
    for host in [&known, &new, &other] {
        host.join();
        run_whole(host, "last");
    }
    let tokens = tokens(&known);
    assert!(tokens.len() >= 9, "{tokens:?}");
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}
