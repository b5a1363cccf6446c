//! Ten thousand `canal run` that wait for one key: held, shown, drained.
//!
//! `cargo bench --bench ten-thousand`. Needs room for so many processes (`ulimit -u`, the cgroup's
//! pids.max), for 10,100 descriptors in the daemon (`ulimit -Hn`) and about 2 GiB of memory for the
//! waiting clients. `WAITERS=N` takes fewer, `CANAL=PATH` another build of canal.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

mod common;

use std::fs;
use std::io;
use std::process::{Child, Stdio};
use std::time::Instant;

use common::{Daemon, wait_until};
use serde_json::Value;

/// How many wait for `x`, and how many slots of it are held.
fn queue(daemon: &Daemon) -> io::Result<(u64, u64)> {
    let output = daemon.canal(&["status", "--json", "x"]).output()?;
    let status: Value = serde_json::from_slice(&output.stdout)?;
    let key = &status["keys"][0];
    Ok((key["waiting"].as_u64().unwrap_or(0), key["held"].as_u64().unwrap_or(0)))
}

/// Memory of a process that is its own, in KiB (`Private_Clean` and `Private_Dirty`).
fn private_kib(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let of = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    Ok(text.lines().filter(|line| line.starts_with("Private_")).filter_map(of).sum())
}

/// The clients; none of them outlives the bench, to start another daemon.
struct Clients(Vec<Child>);

impl Drop for Clients {
    fn drop(&mut self) {
        for client in &mut self.0 {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

fn main() -> io::Result<()> {
    let waiters: u64 = std::env::var("WAITERS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let daemon = Daemon::start()?;
    let mut holder =
        daemon.canal(&["run", "-k", "x", "--", "cat"]).stdin(Stdio::piped()).spawn()?;
    wait_until("the holder holds", || queue(&daemon).is_ok_and(|q| q.1 == 1));

    let before = private_kib(daemon.pid())?;
    let begun = Instant::now();
    let mut clients = Clients(Vec::new());
    for _ in 0..waiters {
        let mut client = daemon.canal(&["run", "-q", "-k", "x", "--", "true"]);
        clients.0.push(client.stdout(Stdio::null()).spawn()?);
    }
    wait_until("all wait", || queue(&daemon).is_ok_and(|q| q.0 == waiters));
    println!("{waiters} clients started and queued in {:.2?}", begun.elapsed());

    let after = private_kib(daemon.pid())?;
    let each = (after.saturating_sub(before)) as f64 / waiters as f64;
    println!("memory of the daemon: {before} KiB, then {after} KiB: {each:.2} KiB for each waiter");

    let begun = Instant::now();
    let shown = daemon.canal(&["status"]).output()?;
    println!(
        "canal status: {} lines in {:.2?}",
        shown.stdout.split(|b| *b == b'\n').count(),
        begun.elapsed()
    );
    let begun = Instant::now();
    let refused = daemon.canal(&["run", "-n", "-q", "-k", "x", "--", "true"]).status()?;
    println!("a newcomer that does not wait is refused ({refused}) in {:.2?}", begun.elapsed());

    let begun = Instant::now();
    drop(holder.stdin.take());
    holder.wait()?;
    let mut failed = 0;
    for client in &mut clients.0 {
        failed += u32::from(!client.wait()?.success());
    }
    let took = begun.elapsed();
    println!(
        "drained in {took:.2?}, {:.0} a second, {failed} failed",
        waiters as f64 / took.as_secs_f64()
    );
    println!("left: {:?} (waiting, held)", queue(&daemon)?);
    assert_eq!(failed, 0, "every client must have run");
    Ok(())
}
