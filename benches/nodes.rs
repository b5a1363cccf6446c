//! The cost of a lock over 2, 3 and 5 nodes, free and contended, compared with one over etcd. All
//! daemons run on this machine, and clients reach them by their sockets. The figures do not include
//! the cost of ssh and a network.
//!
//! `cargo bench --bench nodes`. Needs etcd. `ROUNDS=N` runs N rounds instead of 100, and
//! `CANAL=PATH` measures another build of canal.

mod common;

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::servers::Etcd;
use common::{Daemon, installed, median_and_p90, queue, row, wait_until};

const NODES: usize = 5;

/// The minimum: a new node grants nothing until the longest TTL is over.
const CONFIG: &str = "[nodes]\nlongest_ttl = \"10s\"\n";

/// A measurement of a way.
type Measure = fn(&Way<'_>) -> io::Result<Duration>;

/// A way to take a lock.
struct Way<'d> {
    what: String,
    /// The daemons that take part.
    daemons: &'d [Daemon],
    options: Vec<String>,
}

impl Way<'_> {
    fn run(&self, key: &str, command: &[&str]) -> Command {
        let mut run = self.daemons[0].canal(&["run", "-q", "-k", key]);
        run.args(&self.options).arg("--").args(command);
        run
    }

    /// How long `canal run -- true` takes while no other client asks for the lock.
    fn free(&self) -> io::Result<Duration> {
        let begun = Instant::now();
        let status = self.run("free", &["true"]).stdout(Stdio::null()).status()?;
        let took = begun.elapsed();
        assert!(status.success(), "{}: {status}", self.what);
        Ok(took)
    }

    /// The time from the end of the holder's command to the start of the waiter's.
    fn contended(&self) -> io::Result<Duration> {
        let holds = ["sh", "-c", "echo; read line"];
        let mut holder =
            self.run("contended", &holds).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(input), Some(mut output)) = (holder.stdin.take(), holder.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        output.read_exact(&mut [0])?;
        let mut waiter = self.run("contended", &["echo"]).stdout(Stdio::piped()).spawn()?;
        // canal asks nodes one after another, so the waiter is at only one of them.
        let waits_at = |daemon| queue(daemon, "contended").is_ok_and(|(waiting, _)| waiting == 1);
        wait_until("it waits", || self.daemons.iter().any(waits_at));
        let begun = Instant::now();
        drop(input);
        if let Some(mut output) = waiter.stdout.take() {
            output.read_exact(&mut [0])?;
        }
        let took = begun.elapsed();
        holder.wait()?;
        waiter.wait()?;
        Ok(took)
    }
}

/// All nodes for two, and a majority of three and of five.
fn over(nodes: &[Daemon]) -> Way<'_> {
    let addresses = nodes.iter().map(|node| format!("unix:{}", node.socket().display()));
    let require = if nodes.len() == 2 { "all" } else { "majority" };
    let on = addresses.collect::<Vec<_>>().join(",");
    let options = ["--on", &on, "--require", require, "--ttl", "10s"].map(str::to_owned).to_vec();
    Way { what: format!("{require} of {} nodes", nodes.len()), daemons: nodes, options }
}

/// Waits until the nodes grant.
fn until_ready(way: &Way<'_>) {
    wait_until("the nodes grant", || {
        let ended = way.run("ready", &["true"]).stderr(Stdio::null()).status();
        sleep(Duration::from_millis(200));
        ended.is_ok_and(|status| status.success())
    });
}

fn main() -> io::Result<()> {
    let rounds = std::env::var("ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    if !installed("etcd") {
        row("a lock over nodes", "NOT MEASURED: etcd is NOT INSTALLED", "", "-", "");
        return Ok(());
    }
    let folder = tempfile::Builder::new().prefix("canal-bench-").tempdir()?;
    let (_etcd, url) = Etcd::start(folder.path())?;
    let url = url.replace("http://", "etcd://") + "/canal";
    let member = [Daemon::start_with(&["--engine", &url, "--host", "a"])?];
    let nodes = (0..NODES).map(|_| Daemon::configured(CONFIG)).collect::<io::Result<Vec<_>>>()?;
    let mut ways = vec![Way { what: "etcd".into(), daemons: &member, options: Vec::new() }];
    ways.extend([2, 3, 5].map(|count| over(&nodes[..count])));
    ways.iter().for_each(until_ready);
    let measures: [(&str, Measure); 2] = [
        ("`canal run -- true`, free", |way| way.free()),
        ("from the end of one command to the start of the next", |way| way.contended()),
    ];
    for (what, measure) in measures {
        let mut took: Vec<Vec<Duration>> = ways.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (way, took) in ways.iter().zip(&mut took) {
                took.push(measure(way)?);
            }
        }
        let figures: Vec<(f64, f64)> = took.iter_mut().map(|it| median_and_p90(it)).collect();
        let (of_etcd, _) = figures[0];
        for (way, (median, p90)) in ways.iter().zip(&figures).skip(1) {
            row(
                &format!("{what}, {} (nine of ten within {:.1} ms)", way.what, p90 / 1e3),
                &format!("{:.1} ms", median / 1e3),
                &format!("{:.1} ms (over etcd)", of_etcd / 1e3),
                &format!("{:.2}", median / of_etcd),
                "",
            );
        }
    }
    Ok(())
}
