//! Measures from a release to the start of the next waiter: draining a queue of
//! `canal run -- true`, against flock(1), alternating in one run. Also checks whether the order is
//! that of arrival.
//!
//! `cargo bench --bench handover`. `ROUNDS=N` runs more rounds of the short queue, `WAITERS=N` sets
//! another length of the long queue than 5,000, and `CANAL=PATH` measures another build of canal.

mod common;

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use common::{Children, Daemon, installed, queue, row, wait_until};

/// A program that passes a lock on.
enum Way<'d> {
    Canal(&'d Daemon),
    Flock(PathBuf),
}

impl Way<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = match self {
            Self::Canal(daemon) => daemon.canal(&["run", "-q", "-k", "x", "--"]),
            Self::Flock(file) => {
                let mut command = Command::new("flock");
                command.arg(file);
                command
            }
        };
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// The number of waiters.
    fn waiting(&self) -> io::Result<usize> {
        match self {
            Self::Canal(daemon) => Ok(usize::try_from(queue(daemon, "x")?.0).unwrap_or(usize::MAX)),
            Self::Flock(file) => {
                let inode = format!(":{} ", fs::metadata(file)?.ino());
                let locks = fs::read_to_string("/proc/locks")?;
                Ok(locks.lines().filter(|it| it.contains("->") && it.contains(&inode)).count())
            }
        }
    }

    /// Starts a holder that holds the lock until the returned pipe is dropped.
    fn hold(&self) -> io::Result<(Child, ChildStdin)> {
        let mut command = self.command(&["sh", "-c", "echo; exec cat"]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (holder.stdin.take(), holder.stdout.take());
        let (Some(input), Some(mut output)) = (input, output) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        output.read_exact(&mut [0])?;
        Ok((holder, input))
    }

    /// The time per waiter to queue and then drain `waiters` of them, in microseconds.
    fn drain(&self, waiters: usize) -> io::Result<f64> {
        let (mut holder, input) = self.hold()?;
        let mut clients = Children(Vec::new());
        for _ in 0..waiters {
            clients.0.push(self.command(&["true"]).spawn()?);
        }
        wait_until("all wait", || self.waiting().is_ok_and(|waiting| waiting == waiters));
        let begun = Instant::now();
        drop(input);
        holder.wait()?;
        for client in &mut clients.0 {
            assert!(client.wait()?.success(), "every client must have run");
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6 / waiters as f64)
    }

    /// Whether waiters get the lock in the order of their arrival.
    fn is_in_order(&self, waiters: usize, folder: &Path) -> io::Result<bool> {
        let told = folder.join("told");
        fs::write(&told, "")?;
        let (mut holder, input) = self.hold()?;
        let mut clients = Children(Vec::new());
        for n in 0..waiters {
            let text = format!("echo {n} >> {}", told.display());
            clients.0.push(self.command(&["sh", "-c", &text]).spawn()?);
            wait_until("it waits", || self.waiting().is_ok_and(|waiting| waiting == n + 1));
        }
        drop(input);
        holder.wait()?;
        for client in &mut clients.0 {
            client.wait()?;
        }
        let told = fs::read_to_string(&told)?;
        Ok(told.lines().eq((0..waiters).map(|n| n.to_string())))
    }
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn main() -> io::Result<()> {
    let daemon = Daemon::start()?;
    let file = daemon.folder.path().join("file");
    let canal = Way::Canal(&daemon);
    let flock = installed("flock").then_some(Way::Flock(file));
    let in_order = if canal.is_in_order(50, daemon.folder.path())? { "yes" } else { "NO" };
    row("50 waiters served in the order of arrival", in_order, "", "-", "yes");
    for (waiters, rounds) in [(50, number("ROUNDS", 20)), (number("WAITERS", 5_000), 1)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(canal.drain(waiters)?);
            if let Some(flock) = &flock {
                theirs.push(flock.drain(waiters)?);
            }
        }
        let ours = median(&mut ours);
        let (theirs, ratio) = if theirs.is_empty() {
            ("flock is NOT INSTALLED".to_owned(), "-".to_owned())
        } else {
            let theirs = median(&mut theirs);
            (format!("{theirs:.0} µs (flock)"), format!("{:.2}", ours / theirs))
        };
        let what = format!("hand-over to the next of {waiters} who wait to run `true`");
        row(&what, &format!("{ours:.0} µs"), &theirs, &ratio, "≤ 1.0");
    }
    Ok(())
}
