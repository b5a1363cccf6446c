//! The cost of recording: requests over the socket with 50 connections, to daemons without a
//! history, with one, and with one plus metrics, hooks and estimates. They take turns in short
//! slices, in a different order each time, and each slice is compared with the others of its round.
//!
//! `cargo bench --bench recording`. `ROUNDS=N` takes longer, and `CANAL=PATH` measures another
//! build.

#[path = "../common/mod.rs"]
mod common;

use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::load::{Canal, Load};
use common::{Children, Daemon, row, wait_until};

const CONNECTIONS: usize = 50;

/// About once a second a waiter receives its estimate, and a collector reads the metrics.
const SECOND: Duration = Duration::from_secs(1);

const SLICE: Duration = Duration::from_millis(100);

const OFF: &str = "[history]\nmax = 0\n";

const EVERYTHING: &str = r#"
[metrics]
listen = "METRICS"

[[hooks]]
on = ["long-wait", "long-hold", "deadlock", "lost-lease", "forced-release"]
after = "1h"
run = ["/bin/true"]
USER
"#;

/// A daemon, the load on it, and its measurements.
struct Subject {
    what: &'static str,
    /// One holder and its waiters, so that there is something to estimate. They end before the
    /// daemon, because they would start another one.
    queue: Children,
    daemon: Daemon,
    load: Load<'static>,
    /// The folder of the metrics socket.
    _folder: tempfile::TempDir,
    collected: Instant,
    /// Requests per second of each slice.
    rates: Vec<f64>,
    /// Nanoseconds of processor time per request: of the answering thread, and of all threads.
    own_ns: Vec<f64>,
    all_ns: Vec<f64>,
}

impl Subject {
    fn start(what: &'static str, config: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("canal-bench-").tempdir()?;
        let metrics = folder.path().join("metrics.sock");
        // A daemon of root needs a user to run the program of a hook as.
        let user = if nix::unistd::geteuid().is_root() { "user = \"root\"" } else { "" };
        let config = config.replace("METRICS", &metrics.to_string_lossy()).replace("USER", user);
        let daemon = Daemon::configured(&config)?;
        let load = Load::new(&Canal, &daemon.socket(), CONNECTIONS)?;
        let (rates, own_ns, all_ns) = (Vec::new(), Vec::new(), Vec::new());
        let (queue, collected) = (Children(Vec::new()), Instant::now());
        Ok(Self { what, queue, daemon, load, collected, rates, own_ns, all_ns, _folder: folder })
    }

    /// Makes ten clients wait for a key whose usual hold is known.
    fn queue_up(&mut self) -> io::Result<()> {
        for _ in 0..5 {
            self.daemon.canal(&["run", "-k", "queue", "--", "true"]).status()?;
        }
        for _ in 0..11 {
            let args = ["run", "--progress", "log", "-k", "queue", "--", "sleep", "10000"];
            let client = self.daemon.canal(&args).stderr(Stdio::null()).spawn()?;
            self.queue.0.push(client);
        }
        wait_until("they wait", || common::queue(&self.daemon, "queue").is_ok_and(|it| it.0 == 10));
        Ok(())
    }

    fn take_slice(&mut self) -> io::Result<()> {
        if self.collected.elapsed() >= SECOND {
            self.collected = Instant::now();
            // This is the same query as that of a collector over HTTP.
            let output = self.daemon.canal(&["metrics"]).output()?;
            assert!(output.status.success());
        }
        let (own, all) = processor_ns(self.daemon.pid())?;
        let begun = Instant::now();
        let rate = self.load.rate(SLICE)?;
        let requests = rate * begun.elapsed().as_secs_f64();
        let (own_after, all_after) = processor_ns(self.daemon.pid())?;
        self.rates.push(rate);
        self.own_ns.push((own_after - own) as f64 / requests);
        self.all_ns.push((all_after - all) as f64 / requests);
        Ok(())
    }
}

/// How long the first thread of a process has run so far, and all its threads, in nanoseconds.
fn processor_ns(pid: u32) -> io::Result<(u64, u64)> {
    let (mut own, mut all) = (0, 0);
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        let text = std::fs::read_to_string(task.path().join("schedstat"))?;
        let ran = text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        all += ran;
        if task.file_name().to_str() == Some(&pid.to_string()) {
            own = ran;
        }
    }
    Ok((own, all))
}

/// The median, 10 % and 90 % quantiles of the quotients.
fn quotients(of: &[f64], by: &[f64]) -> (f64, f64, f64) {
    let mut all: Vec<f64> = of.iter().zip(by).map(|(of, by)| of / by).collect();
    all.sort_by(f64::total_cmp);
    let at = |tenth: usize| all[(all.len() - 1) * tenth / 10];
    (at(5), at(1), at(9))
}

fn tell(what: &str, of: &[f64], by: &[f64], unit: &str, goal: &str) {
    let (median, low, high) = quotients(of, by);
    let shown = |figures: &[f64]| format!("{:.1} {unit}", common::median(figures.to_vec()));
    let ratio = format!("{median:.3} ({low:.2}–{high:.2})");
    row(what, &shown(of), &format!("{} (no history)", shown(by)), &ratio, goal);
}

fn main() -> io::Result<()> {
    let rounds = std::env::var("ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let mut subjects = [
        Subject::start("no history", OFF)?,
        Subject::start("no history, the same again", OFF)?,
        Subject::start("history", "")?,
        Subject::start("history, metrics, hooks, estimates", EVERYTHING)?,
    ];
    for subject in &mut subjects {
        subject.queue_up()?;
    }
    for round in 0..rounds {
        let count = subjects.len();
        for turn in 0..count {
            // Each subject is first equally often, and follows each other one.
            let number = if round % 2 == 0 { turn } else { count - 1 - turn };
            subjects[(round / 2 + number) % count].take_slice()?;
        }
    }
    let [without, others @ ..] = &subjects;
    for it in others {
        let thousands = |rates: &[f64]| rates.iter().map(|rate| rate / 1e3).collect::<Vec<_>>();
        let micros = |ns: &[f64]| ns.iter().map(|ns| ns / 1e3).collect::<Vec<_>>();
        let of = |what: &str| format!("{what}, {CONNECTIONS} connections: {}", it.what);
        let (rates, base) = (thousands(&it.rates), thousands(&without.rates));
        tell(&of("requests per second"), &rates, &base, "k", "≥ 0.97");
        let (own, base) = (micros(&it.own_ns), micros(&without.own_ns));
        tell(&of("the loop's processor time for a request"), &own, &base, "µs", "≤ 1.03");
        let (all, base) = (micros(&it.all_ns), micros(&without.all_ns));
        tell(&of("the daemon's processor time for a request"), &all, &base, "µs", "");
    }
    Ok(())
}
