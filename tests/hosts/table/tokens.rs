//! Fencing tokens across hosts: the token of each grant is greater than the tokens of all earlier
//! grants, whichever processes are killed in between.
//!
//! Every command holds the mutex `order` when it records its token, so the order of the records is
//! that of the grants. `CANAL_GRANTS` sets the number of grants.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::hosts::over_each_engine;
use crate::shared_table::figures::print_line;
use crate::shared_table::{Host, Log, hosts, hosts_timed, until_idle};
use crate::world::process::{BOUND, Cmd, Proc, children};

over_each_engine!(tokens_grow_with_every_grant_of_any_kind_on_any_host_while_processes_are_killed);

/// How many clients each host has at the same time.
const CLIENTS: usize = 5;

const RECORD: &str = "echo $CANAL_TOKEN >>tokens";

const ACQUIRED: &str = r#"
answer=$(canal acquire -q --pid $$ -k order --json) || exit
token=${answer##*'"token":'}; echo ${token%%,*} >>tokens"#;

/// If the daemon is killed before it answers, the result of a release is unknown (125).
const LEASED: &str = r#"
answer=$(canal acquire -q -k order --ttl 5m) || exit
eval "$answer"; echo $CANAL_TOKEN >>tokens
while canal release -q --handle $CANAL_HANDLE; [ $? = 125 ]; do :; done"#;

/// The test kills a client after this many grants, or a daemon.
const CLIENT_KILLS: usize = 6;
const DAEMON_KILLS: usize = 40;

fn wanted() -> usize {
    std::env::var("CANAL_GRANTS").ok().and_then(|it| it.parse().ok()).unwrap_or(240)
}

/// The number of kinds of clients; most kinds are the plain one.
const KINDS: usize = 16;

/// A lease outlives its client, so the test does not kill this kind.
const LEASE: usize = 8;

fn client(host: &Host, kind: usize) -> Cmd<'_> {
    let run = |args: &[&str]| {
        host.world.canal(["run", "-q", "-k", "order"]).args(args).args(["-c", RECORD])
    };
    let nested = format!("{RECORD}; exec canal run -q -k nested=1x2 -c '{RECORD}'");
    match kind {
        0 => run(&["-k", "pool=2x2:3"]),
        1 => run(&["--read", "tree/leaf"]),
        2 => run(&["--write", "tree"]),
        3 => run(&["--with-children"]),
        4 => run(&["--priority", "1"]),
        5 => host.world.canal(["run", "-q", "-k", "order", "-c", &nested]),
        6 => host.world.sh(ACQUIRED),
        LEASE => host.world.sh(LEASED),
        _ => run(&[]),
    }
}

struct Client {
    proc: Proc,
    kind: usize,
    killed: bool,
}

impl Client {
    fn start(host: &Host, kind: usize) -> Self {
        Self { proc: client(host, kind).spawn(), kind, killed: false }
    }

    /// Kills the client or its child.
    fn kill(&mut self) -> bool {
        if self.kind == LEASE || self.proc.has_ended() {
            return false;
        }
        let own = self.proc.pid();
        let pid = if fastrand::bool() { children(own).first().copied() } else { Some(own) };
        self.killed = true;
        // Its child may have been reaped by now.
        kill(Pid::from_raw(pid.unwrap_or(own)), Signal::SIGKILL).is_ok()
    }

    fn end(self) {
        let (kind, killed) = (self.kind, self.killed);
        let ended = self.proc.end();
        assert!(killed || ended.code == Some(0), "kind {kind}: {ended:?}");
    }
}

fn tokens_grow_with_every_grant_of_any_kind_on_any_host_while_processes_are_killed(log: &Log) {
    let hosts: [Host; 3] = hosts(log);
    let tokens = || -> Vec<u64> {
        let text = hosts[0].world.read("tokens");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| line.parse().unwrap()).collect()
    };
    let mut clients: [Vec<Client>; 3] = Default::default();
    let (mut started, mut killed, mut daemons) = (0, 0, 0);
    let begun = Instant::now();
    let (mut granted, mut last_grant) = (0, begun);
    while granted < wanted() {
        for (host, clients) in hosts.iter().zip(&mut clients) {
            let ended = clients.extract_if(.., |client| client.proc.has_ended());
            ended.for_each(Client::end);
            while clients.len() < CLIENTS {
                clients.push(Client::start(host, started % KINDS));
                started += 1;
            }
        }
        if granted / CLIENT_KILLS > killed {
            let victim = &mut clients[fastrand::usize(..3)][fastrand::usize(..CLIENTS)];
            killed += usize::from(victim.kill());
        }
        if granted / DAEMON_KILLS > daemons {
            hosts[daemons % 3].world.kill_daemon();
            daemons += 1;
        }
        std::thread::sleep(Duration::from_millis(5));
        let now = tokens().len();
        if now > granted {
            (granted, last_grant) = (now, Instant::now());
        }
        assert!(last_grant.elapsed() < BOUND, "stuck after {granted} grants");
    }
    let lasted = begun.elapsed().as_secs_f64();
    clients.into_iter().flatten().for_each(Client::end);
    let tokens = tokens();
    print_line(&format!(
        "{} tokens over {} on 3 hosts in {lasted:.0} s; {killed} of {started} clients and {daemons} \
         daemons were killed",
        tokens.len(),
        log.engine(),
    ));
    for (at, pair) in tokens.windows(2).enumerate() {
        assert!(pair[0] < pair[1], "grant {}: {} after {}", at + 1, pair[1], pair[0]);
    }
    until_idle(&hosts);
}

/// The log returns to an earlier state while hosts keep running, are stopped, or are killed.
#[test]
fn tokens_grow_after_the_log_is_rewritten() {
    let Some(server) = crate::postgres_server::start_postgres() else { return };
    let tables = ["head", "hosts", "log", "snapshot"];
    for meanwhile in ["run on", "stopped", "killed"] {
        let log = Log::in_postgres(&server);
        let [a, b] = hosts_timed(&log, "ttl = \"5s\"");
        let token = |host: &Host| {
            let script = "echo $CANAL_TOKEN";
            let ended = host.world.canal(["run", "-q", "-k", "order", "-c", script]).end().code(0);
            ended.stdout.trim().parse::<u64>().unwrap()
        };
        let mut tokens = vec![token(&a), token(&b)];
        let save = tables.map(|it| format!("CREATE TABLE saved.{it} AS TABLE canal.{it};"));
        // A release may be appended at the same time. All tables must show the same point in time,
        // as in a backup.
        let save = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; CREATE SCHEMA saved; {} COMMIT;",
            save.concat()
        );
        server.sql_in(log.name(), &save);
        tokens.extend([token(&b), token(&a), token(&b)]);
        for host in [&a, &b] {
            match meanwhile {
                "stopped" => {
                    host.world.canal(["daemon", "--stop"]).end().code(0);
                }
                "killed" => {
                    host.world.kill_daemon_quietly();
                }
                _ => {}
            }
        }
        let restore = tables.map(|it| {
            format!("DELETE FROM canal.{it}; INSERT INTO canal.{it} SELECT * FROM saved.{it};")
        });
        server.sql_in(log.name(), &restore.concat());
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = ";
        server.sql(&format!("{end}'{}'", log.name()));
        tokens.extend([token(&a), token(&b), token(&a)]);
        assert!(tokens.is_sorted_by(|one, next| one < next), "{meanwhile}: {tokens:?}");
        until_idle(&[a, b]);
    }
}
