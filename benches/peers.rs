//! `canal run -k x -- true` against the wrappers that people use today, alternating in one run.
//!
//! `cargo bench --bench peers`. Peers that are not installed are left out: `flock` (util-linux),
//! `chpst` (runit), `setlock` (daemontools), `sem` (parallel). `CANAL=PATH` measures another build
//! of canal, `ROUNDS=N` takes more rounds.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

mod common;

use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Daemon, canal, installed, median_and_p90};

/// A way to run `true` under a lock.
struct Way {
    name: String,
    command: Command,
    /// Run once in so many rounds: some peers are slow.
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

/// `PROGRAM ARGS true`, if it is installed.
fn peer(ways: &mut Vec<Way>, program: &str, args: &[&str], every: usize) {
    if installed(program) {
        let mut command = Command::new(program);
        command.args(args).arg("true");
        ways.push(Way::new(&format!("{program} {} true", args.join(" ")), command, every));
    } else {
        println!("({program} is not installed)");
    }
}

fn main() -> io::Result<()> {
    let rounds = std::env::var("ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1500);
    let daemon = Daemon::start()?;
    let file = daemon.folder.path().join("file").display().to_string();
    let home = daemon.folder.path().join("home");
    std::fs::create_dir(&home)?;

    println!("canal is {}", canal().display());
    let mut ways = Vec::new();
    ways.push(Way::new(
        "canal run -k x -- true",
        daemon.canal(&["run", "-k", "x", "--", "true"]),
        1,
    ));
    ways.push(Way::new("true", Command::new("true"), 1));
    peer(&mut ways, "flock", &[&file], 1);
    peer(&mut ways, "chpst", &["-L", &file], 1);
    peer(&mut ways, "setlock", &[&file], 1);
    peer(&mut ways, "sem", &["--fg", "--id", "x"], 50);
    for way in &mut ways {
        way.command.env("HOME", &home).env("PARALLEL_HOME", &home);
        way.run()?;
        way.took.clear();
    }
    for round in 0..rounds {
        for way in &mut ways {
            if round % way.every == 0 {
                way.run()?;
            }
        }
    }

    println!("{rounds} rounds, microseconds from start to end as seen by the one who starts it");
    println!("{:<44} {:>9} {:>9} {:>12}", "", "median", "p90", "canal/this");
    let mut base = None;
    for way in &mut ways {
        let (median, p90) = median_and_p90(&mut way.took);
        let base = *base.get_or_insert(median);
        let name = way.name.replace(&file, "FILE");
        println!("{name:<44} {median:>9.0} {p90:>9.0} {:>12.2}", base / median);
    }
    Ok(())
}
