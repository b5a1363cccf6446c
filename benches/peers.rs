//! `canal run -k x -- true` against today's usual wrappers, alternating in one run, in an order
//! drawn for each round. It prints which wrappers are missing.
//!
//! `cargo bench --bench peers`. `CANAL=PATH` measures another build of canal, `CANAL_PLAIN=PATH`
//! adds a second one, and `CANAL_OTHERS=PATH:PATH` adds more, each with its own daemon. `ROUNDS=N`
//! runs more rounds.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

mod common;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::servers::Etcd;
use common::{Daemon, canal, install, installed, median_and_p90, row};

/// A way to run `true` under a lock.
struct Way {
    name: String,
    command: Command,
    /// It runs in one of this many rounds, because some peers are slow.
    every: usize,
    took: Vec<Duration>,
}

impl Way {
    fn new(name: &str, mut command: Command, every: usize) -> Self {
        command.stdin(Stdio::null());
        Self { name: name.to_owned(), command, every, took: Vec::new() }
    }

    fn run(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        let status = self.command.status()?;
        self.took.push(begun.elapsed());
        assert!(status.success(), "{}: {status}", self.name);
        Ok(())
    }
}

/// Adds `PROGRAM ARGS true` if the program is installed. The packages are util-linux (`flock`),
/// runit (`chpst`), daemontools (`setlock`), s6 (`s6-setlock`), parallel (`sem`), task-spooler
/// (`tsp`), etcd-client (`etcdctl lock`) and etcd-server, which runs only for this benchmark.
fn peer(ways: &mut Vec<Way>, program: &str, args: &[&str], every: usize) {
    if installed(program) {
        let mut command = Command::new(program);
        command.args(args).arg("true").stdout(Stdio::null());
        ways.push(Way::new(&format!("{program} {} true", args.join(" ")), command, every));
    } else {
        row(&format!("`{program}`"), "", "NOT INSTALLED", "-", "");
    }
}

fn main() -> io::Result<()> {
    let rounds = std::env::var("ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1500);
    let daemon = Daemon::start()?;
    let folder = daemon.folder.path();
    let file = folder.join("file").display().to_string();
    let file_s6 = folder.join("file.s6").display().to_string();
    let home = folder.join("home");
    std::fs::create_dir(&home)?;

    println!("canal is {}", canal().display());
    let run = ["run", "-k", "x", "--", "true"];
    let mut ways = vec![Way::new(OURS, daemon.canal(&run), 1)];
    if let Some(plain) = std::env::var_os("CANAL_PLAIN") {
        let mut command = Command::new(install(Path::new(&plain), folder, "canal-plain")?);
        command.args(run).env("CANAL_SOCKET", daemon.socket());
        ways.push(Way::new(PLAIN, command, 1));
    }
    let others = other_builds()?;
    for (path, daemon) in &others {
        ways.push(Way::new(&format!("{OTHER}{}", path.display()), daemon.canal(&run), 1));
    }
    ways.push(Way::new("true", Command::new("true"), 1));
    peer(&mut ways, "flock", &[&file], 1);
    peer(&mut ways, "chpst", &["-L", &file], 1);
    peer(&mut ways, "setlock", &[&file], 1);
    peer(&mut ways, "s6-setlock", &[&file_s6], 1);
    peer(&mut ways, "sem", &["--fg", "--id", "x"], 50);
    peer(&mut ways, "tsp", &["-nf"], 50);
    let etcd = if installed("etcd") { Some(Etcd::start(folder)?) } else { None };
    match &etcd {
        Some((_, url)) => peer(&mut ways, "etcdctl", &["--endpoints", url, "lock", "x"], 50),
        None => row("`etcd`", "", "NOT INSTALLED", "-", ""),
    }
    for way in &mut ways {
        way.command.env("HOME", &home).env("PARALLEL_HOME", &home).env("ETCDCTL_API", "3");
        way.command.env("TS_SOCKET", folder.join("tsp.sock"));
        way.run()?;
        way.took.clear();
    }
    // The order differs each time but is reproducible: a program that follows a similar one finds
    // much of its data in the processor's caches.
    let mut order = fastrand::Rng::with_seed(1);
    let mut turns: Vec<usize> = (0..ways.len()).collect();
    for round in 0..rounds {
        order.shuffle(&mut turns);
        for &turn in &turns {
            let way = &mut ways[turn];
            if round % way.every == 0 {
                way.run()?;
            }
        }
    }
    if installed("tsp") {
        let _ = Command::new("tsp").arg("-K").env("TS_SOCKET", folder.join("tsp.sock")).status();
    }

    println!("{rounds} rounds, microseconds from start to end as seen by the one who starts it");
    let mut medians = Vec::new();
    for way in &mut ways {
        let (median, p90) = median_and_p90(&mut way.took);
        let name = way.name.replace(&file_s6, "FILE").replace(&file, "FILE");
        println!("{name:<60} {median:>9.0} {p90:>9.0}");
        medians.push((name, median));
    }
    tell(&medians);
    Ok(())
}

/// The builds in CANAL_OTHERS. Each needs its own daemon, because its protocol may differ.
fn other_builds() -> io::Result<Vec<(PathBuf, Daemon)>> {
    let named = std::env::var_os("CANAL_OTHERS").unwrap_or_default();
    let paths = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    paths.map(|path| Ok((path.clone(), Daemon::of_build(&path)?))).collect()
}

/// canal as built for this benchmark, or as CANAL names it.
const OURS: &str = "canal run -k x -- true";
/// The build in CANAL_PLAIN.
const PLAIN: &str = "canal run -k x -- true, plain build";
/// A build in CANAL_OTHERS; its path follows.
const OTHER: &str = "canal run -k x -- true, ";

/// Prints the rows of the table.
fn tell(medians: &[(String, f64)]) {
    let of = |start: &str| {
        let found = medians.iter().find(|(name, _)| name.starts_with(start));
        found.map(|(_, median)| *median)
    };
    let compare = |ours: &str, theirs: (&str, f64), goal: &str| {
        let found = medians.iter().find(|(name, _)| name == ours);
        let Some((_, median)) = found else {
            return row(&format!("`{ours}`"), "NOT MEASURED", "", "-", goal);
        };
        let (name, other) = theirs;
        let (figure, other_figure) = (format!("{median:.0} µs"), format!("{other:.0} µs ({name})"));
        row(&format!("`{ours}`"), &figure, &other_figure, &format!("{:.2}", median / other), goal);
    };
    if let Some(flock) = of("flock") {
        compare(OURS, ("flock", flock), "≤ 0.60");
        compare(PLAIN, ("flock", flock), "≤ 0.95");
        let others = medians.iter().filter(|(name, _)| name.starts_with(OTHER) && name != PLAIN);
        for (other, _) in others {
            compare(other, ("flock", flock), "");
        }
    }
    let wrappers = ["chpst", "setlock", "s6-setlock"].map(|name| Some((name, of(name)?)));
    let fastest = wrappers.into_iter().flatten().min_by(|one, other| one.1.total_cmp(&other.1));
    if let Some(fastest) = fastest {
        compare(OURS, fastest, "≤ 0.85");
    }
    for name in ["sem", "tsp", "etcdctl"] {
        if let Some(median) = of(name) {
            compare(OURS, (name, median), "");
        }
    }
}
