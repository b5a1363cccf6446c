//! The cost of canal for an engine: transactions and bytes of a lone `canal run`, and of idle
//! hosts. It only counts, so other load on the machine does not matter.
//!
//! `cargo bench --bench engine-cost` starts its own etcd and PostgreSQL, and prints the table of
//! docs/many-hosts.md. `ROUNDS=N` runs N commands instead of 200, `IDLE=N` observes idle hosts for
//! N seconds instead of 60 (one TTL), and `CANAL=PATH` measures another build of canal.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

mod common;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Sub;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::servers::{Etcd, Postgres};
use common::{Daemon, installed, wait_until};

/// How many idle hosts there are.
const HOSTS: usize = 20;

/// PostgreSQL's sessions report their work after at most this much idle time.
const REPORTED_WITHIN: Duration = Duration::from_secs(11);

/// The work of an engine so far.
#[derive(Clone, Copy, Debug)]
struct Counts {
    /// Transactions of PostgreSQL; client requests of etcd.
    transactions: f64,
    /// Committed changes: revisions of etcd. PostgreSQL has no such number.
    revisions: f64,
    /// Bytes written ahead and synced to the disk.
    log_bytes: f64,
    /// The size of the data in bytes.
    data_bytes: f64,
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            transactions: self.transactions - before.transactions,
            revisions: self.revisions - before.revisions,
            log_bytes: self.log_bytes - before.log_bytes,
            data_bytes: self.data_bytes - before.data_bytes,
        }
    }
}

impl Counts {
    fn per(self, number: f64) -> Self {
        Self {
            transactions: self.transactions / number,
            revisions: self.revisions / number,
            log_bytes: self.log_bytes / number,
            data_bytes: self.data_bytes / number,
        }
    }
}

/// An engine that counts its work.
trait Counted {
    const NAME: &'static str;

    /// The address for a daemon.
    fn url(&self) -> String;

    /// All its work so far.
    fn counts(&self) -> io::Result<Counts>;

    /// The three columns of the table.
    fn columns(counts: Counts) -> [String; 3];
}

struct OfEtcd {
    _server: Etcd,
    /// The address without the scheme.
    address: String,
}

impl OfEtcd {
    /// The sum of all series of a metric whose labels contain `having`.
    fn sum(metrics: &str, name: &str, having: &str) -> f64 {
        let series = metrics.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(having)
        });
        series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

impl Counted for OfEtcd {
    const NAME: &'static str = "etcd";

    fn url(&self) -> String {
        format!("etcd://{}/canal", self.address)
    }

    fn counts(&self) -> io::Result<Counts> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut metrics = String::new();
        stream.read_to_string(&mut metrics)?;
        let sum = |name, having| Self::sum(&metrics, name, having);
        // Each message of a stream is a request; keep-alives share one stream.
        let transactions = sum("grpc_server_msg_received_total", "");
        // The answer about a missing key contains the revision too.
        let mut ctl = Command::new("etcdctl");
        ctl.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.address));
        let said = ctl.args(["get", "none", "--write-out=json"]).output()?;
        let said: serde_json::Value = serde_json::from_slice(&said.stdout)?;
        Ok(Counts {
            transactions,
            revisions: said["header"]["revision"].as_f64().unwrap_or(f64::NAN),
            log_bytes: sum("etcd_disk_wal_write_bytes_total", ""),
            data_bytes: sum("etcd_mvcc_db_total_size_in_use_in_bytes", ""),
        })
    }

    fn columns(counts: Counts) -> [String; 3] {
        let Counts { transactions, revisions, log_bytes, data_bytes } = counts;
        [
            format!("{} requests, {} revisions", figure(transactions), figure(revisions)),
            bytes(log_bytes),
            bytes(data_bytes),
        ]
    }
}

impl Counted for Postgres {
    const NAME: &'static str = "PostgreSQL";

    fn url(&self) -> String {
        self.url.clone()
    }

    fn counts(&self) -> io::Result<Counts> {
        thread::sleep(REPORTED_WITHIN);
        let query = "SELECT xact_commit + xact_rollback, pg_current_wal_lsn() - '0/0', \
                     pg_database_size(datname) FROM pg_stat_database WHERE datname = 'canal'";
        // Connect to another database, so that this query does not count.
        let base = format!("{}postgres", self.url.trim_end_matches("canal"));
        let mut psql = Command::new(&self.psql);
        let said = psql.args(["-XqAt", "-F", " ", "-c", query, &base]).output()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let mut numbers = said.split_whitespace().map(|it| it.parse().unwrap_or(f64::NAN));
        let mut next = || numbers.next().unwrap_or(f64::NAN);
        Ok(Counts { transactions: next(), revisions: 0.0, log_bytes: next(), data_bytes: next() })
    }

    fn columns(counts: Counts) -> [String; 3] {
        let Counts { transactions, log_bytes, data_bytes, .. } = counts;
        [format!("{} transactions", figure(transactions)), bytes(log_bytes), bytes(data_bytes)]
    }
}

/// A number with two significant digits.
fn figure(number: f64) -> String {
    if number.abs() < 10.0 { format!("{number:.2}") } else { format!("{number:.0}") }
}

fn bytes(number: f64) -> String {
    format!("{} B", figure(number))
}

/// A daemon that is a member.
fn member(url: &str, host: &str) -> io::Result<Daemon> {
    let daemon = Daemon::start_with(&["--engine", url, "--host", host])?;
    wait_until("the host is a member", || {
        let status = daemon.canal(&["status", "--json"]).output();
        let status = status.ok().and_then(|said| serde_json::from_slice(&said.stdout).ok());
        status.is_some_and(|status: serde_json::Value| status["engine"]["state"] == "member")
    });
    Ok(daemon)
}

fn print(what: impl fmt::Display, columns: &[String; 3]) {
    println!("| {what} | {} |", columns.join(" | "));
}

/// The cost of hosts per second while no client asks them anything.
fn idle<E: Counted>(engine: &E) -> io::Result<Counts> {
    // Wait until the follow-up work of the start is done.
    thread::sleep(Duration::from_secs(2));
    let (before, begun) = (engine.counts()?, Instant::now());
    thread::sleep(Duration::from_secs(number("IDLE", 60)));
    // The time counts from the moments of the two readings.
    let after = engine.counts()?;
    Ok((after - before).per(begun.elapsed().as_secs_f64()))
}

/// What a `canal run` costs while these hosts take turns, without what idle hosts cost per second.
fn runs<E: Counted>(engine: &E, hosts: &[Daemon], idle: Counts) -> io::Result<Counts> {
    let rounds = number("ROUNDS", 200);
    let (before, begun) = (engine.counts()?, Instant::now());
    for (_, host) in (0..rounds).zip(hosts.iter().cycle()) {
        let mut run = host.canal(&["run", "-k", "x", "--", "true"]);
        let status = run.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        assert!(status.success(), "canal run: {status}");
    }
    let (whole, took) = (engine.counts()? - before, begun.elapsed().as_secs_f64());
    Ok((whole - idle.per(1.0 / took)).per(rounds as f64))
}

fn measure<E: Counted>(engine: &E) -> io::Result<()> {
    let name = E::NAME;
    let mut hosts = vec![member(&engine.url(), "h1")?];
    let alone = idle(engine)?;
    let run = runs(engine, &hosts, alone)?;
    print(format_args!("{name}: a lone `canal run`"), &E::columns(run));
    print(format_args!("{name}: 1 idle host, per second"), &E::columns(alone));
    while hosts.len() < HOSTS {
        hosts.push(member(&engine.url(), &format!("h{}", hosts.len() + 1))?);
    }
    let together = idle(engine)?;
    for some in [1, 2, HOSTS] {
        let run = runs(engine, &hosts[..some], together)?;
        let what = format_args!("{name}: a `canal run`, {some} of {HOSTS} hosts in turns");
        print(what, &E::columns(run));
    }
    print(format_args!("{name}: {HOSTS} idle hosts, per second"), &E::columns(together));
    Ok(())
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn main() -> io::Result<()> {
    let folder = tempfile::Builder::new().prefix("canal-bench-").tempdir()?;
    println!("| what | asked of the engine | written ahead | kept |\n|---|---|---|---|");
    if let Some(bin) = Postgres::installed() {
        measure(&Postgres::start(&bin, folder.path())?)?;
    } else {
        println!("| PostgreSQL | NOT MEASURED: initdb, postgres or psql IS NOT INSTALLED | | |");
    }
    if installed("etcd") && installed("etcdctl") {
        let (server, url) = Etcd::start(folder.path())?;
        let address = url.replace("http://", "");
        measure(&OfEtcd { _server: server, address })?;
    } else {
        println!("| etcd | NOT MEASURED: etcd or etcdctl IS NOT INSTALLED | | |");
    }
    Ok(())
}
