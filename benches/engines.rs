//! `canal run` over an engine against today's usual locks on the same server, `etcdctl lock` and an
//! advisory lock in `psql`, alternating; then hosts that share one table over that engine.
//!
//! `cargo bench --bench engines`. Needs etcd, etcdctl, initdb, postgres and psql, and prints which
//! are missing. `ROUNDS=N` runs N rounds instead of 200, `SECONDS_OF_LOAD=N` keeps up the load for
//! N seconds instead of 5, `HOSTS=N` lets N hosts share the table instead of 20, and `CANAL=PATH`
//! measures another build of canal.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

mod common;

use std::fs;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::servers::{Etcd, Postgres};
use common::{Daemon, installed, median_and_p90, queue, row, wait_until};

/// How many commands may run at once in the load.
const CAPACITY: usize = 3;
const CLIENTS: usize = 20;

/// An engine, and the peer to compare with canal over it.
struct Engine<'e> {
    name: &'e str,
    url: String,
    peer: &'e str,
    goal: &'e str,
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

fn timed(command: &mut Command) -> io::Result<Duration> {
    let begun = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    let took = begun.elapsed();
    assert!(status.success(), "{command:?}: {status}");
    Ok(took)
}

/// Runs `canal run -k x -- true` and the peer, alternating.
fn compare(engine: &Engine, daemon: &Daemon, peer: &mut Command) -> io::Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..number("ROUNDS", 200) {
        ours.push(timed(&mut daemon.canal(&["run", "-k", "x", "--", "true"]))?);
        theirs.push(timed(peer)?);
    }
    let (median, p90) = median_and_p90(&mut ours);
    let (their_median, their_p90) = median_and_p90(&mut theirs);
    println!("over {}: {median:.0} µs, nine of ten within {p90:.0} µs", engine.name);
    println!("{}: {their_median:.0} µs, nine of ten within {their_p90:.0} µs", engine.peer);
    row(
        &format!("`canal run -k x -- true` over {}", engine.name),
        &format!("{median:.0} µs"),
        &format!("{their_median:.0} µs ({})", engine.peer),
        &format!("{:.2}", median / their_median),
        engine.goal,
    );
    Ok(())
}

/// Measures from the release on one of `hosts` hosts to the start of the command on another.
fn hand_over(engine: &Engine, a: &Daemon, b: &Daemon, hosts: usize) -> io::Result<()> {
    let mut took = Vec::new();
    for round in 0..number("ROUNDS", 200) / 4 {
        let (a, b) = if round % 2 == 0 { (a, b) } else { (b, a) };
        let hold = ["run", "-q", "-k", "y", "--", "sh", "-c", "echo; read line"];
        let mut holder = a.canal(&hold).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(input), Some(mut output)) = (holder.stdin.take(), holder.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        output.read_exact(&mut [0])?;
        let wait = ["run", "-q", "-k", "y", "--", "echo"];
        let mut waiter = b.canal(&wait).stdout(Stdio::piped()).spawn()?;
        wait_until("it waits", || queue(a, "y").is_ok_and(|(waiting, _)| waiting == 1));
        let begun = Instant::now();
        drop(input);
        if let Some(mut output) = waiter.stdout.take() {
            output.read_exact(&mut [0])?;
        }
        took.push(begun.elapsed());
        holder.wait()?;
        waiter.wait()?;
    }
    let (median, p90) = median_and_p90(&mut took);
    println!("{hosts} hosts over {}: nine of ten within {p90:.0} µs", engine.name);
    let what = format!("hand-over from host to host over {}, {hosts} hosts", engine.name);
    row(&what, &format!("{median:.0} µs"), "", "", "");
    Ok(())
}

/// Measures the throughput of three hosts with 20 clients each and three slots. The commands' own
/// records must never show more commands than slots.
fn load(engine: &Engine, hosts: &[Daemon]) -> io::Result<()> {
    let Some(first) = hosts.first() else { return Ok(()) };
    let record = first.folder.path().join("record");
    fs::write(&record, "")?;
    let length = Duration::from_secs(number("SECONDS_OF_LOAD", 5) as u64);
    let capacity = CAPACITY.to_string();
    let text = format!("echo + >>{0}; echo - >>{0}", record.display());
    let command = ["sh", "-c", &text];
    let run = ["run", "-q", "--per", &capacity, "--buckets", "1", "-k", "z", "--"];
    let begun = Instant::now();
    thread::scope(|scope| {
        for host in hosts {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    while begun.elapsed() < length {
                        let status = host.canal(&run).args(command).status();
                        assert!(status.is_ok_and(|it| it.success()), "every client must have run");
                    }
                });
            }
        }
    });
    let elapsed = begun.elapsed().as_secs_f64();
    let (mut now, mut most, mut ran) = (0, 0, 0_u32);
    for line in fs::read_to_string(&record)?.lines() {
        if line == "+" {
            (now, ran) = (now + 1, ran + 1);
        } else {
            now -= 1;
        }
        most = most.max(now);
    }
    assert!(most <= CAPACITY && now == 0, "{most} at once, {now} left: over capacity");
    let what = format!(
        "3 hosts x {CLIENTS} clients over {}, {CAPACITY} at once, for {elapsed:.0} s",
        engine.name
    );
    row(&what, &format!("{:.0} commands per second", f64::from(ran) / elapsed), "", "", "");
    Ok(())
}

fn all(engine: &Engine, peer: &mut Command) -> io::Result<()> {
    let hosts = [member(&engine.url, "a")?, member(&engine.url, "b")?, member(&engine.url, "c")?];
    let [a, b, _] = &hosts;
    compare(engine, a, peer)?;
    hand_over(engine, a, b, hosts.len())?;
    load(engine, &hosts)?;
    let idle = (hosts.len()..number("HOSTS", 20)).map(|at| member(&engine.url, &format!("h{at}")));
    let idle = idle.collect::<io::Result<Vec<_>>>()?;
    hand_over(engine, a, b, hosts.len() + idle.len())
}

fn missing(engine: &str, what: &str, goal: &str) {
    let what = format!("NOT MEASURED: {what} NOT INSTALLED");
    row(&format!("`canal run -k x -- true` over {engine}"), &what, "", "-", goal);
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn main() -> io::Result<()> {
    let folder = tempfile::Builder::new().prefix("canal-bench-").tempdir()?;
    let goal = "≤ 0.20";
    if installed("etcd") && installed("etcdctl") {
        let (_etcd, url) = Etcd::start(folder.path())?;
        let mut peer = Command::new("etcdctl");
        peer.env("ETCDCTL_API", "3").args(["--endpoints", &url, "lock", "x", "true"]);
        let url = url.replace("http://", "etcd://") + "/canal";
        all(&Engine { name: "etcd", url, peer: "etcdctl lock", goal }, &mut peer)?;
    } else {
        missing("etcd", "etcd or etcdctl is", goal);
    }
    if let Some(bin) = Postgres::installed() {
        let server = Postgres::start(&bin, folder.path())?;
        let mut peer = Command::new(&server.psql);
        peer.args(["-Xq", "-c", "SELECT pg_advisory_lock(1)", "-c", "\\! true", &server.url]);
        let url = server.url.clone();
        all(&Engine { name: "PostgreSQL", url, peer: "psql, advisory lock", goal: "" }, &mut peer)?;
    } else {
        missing("PostgreSQL", "initdb, postgres or psql is", "");
    }
    Ok(())
}
