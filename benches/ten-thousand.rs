//! Up to ten thousand `canal run` that wait for one key: held, shown, drained.
//!
//! `cargo bench --bench ten-thousand`. Needs room for that many processes (`ulimit -u`, the
//! cgroup's pids.max), 10,100 descriptors in the daemon (`ulimit -Hn`), and about 2 GiB of memory
//! for the waiting clients. `WAITERS=N` uses fewer, and `CANAL=PATH` measures another build of
//! canal.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

mod common;

use std::io;
use std::process::Stdio;
use std::time::Instant;

use common::{Children, Daemon, private_kib, queue, row, wait_until};

/// The result for one number of waiters.
struct Figures {
    kib_each: f64,
    drained_us_each: f64,
}

fn with_waiters(waiters: u64) -> io::Result<Figures> {
    let daemon = Daemon::start()?;
    let mut holder =
        daemon.canal(&["run", "-k", "x", "--", "cat"]).stdin(Stdio::piped()).spawn()?;
    wait_until("the holder holds", || queue(&daemon, "x").is_ok_and(|q| q.1 == 1));

    let before = private_kib(daemon.pid())?;
    let begun = Instant::now();
    let mut clients = Children(Vec::new());
    for _ in 0..waiters {
        let mut client = daemon.canal(&["run", "-q", "-k", "x", "--", "true"]);
        clients.0.push(client.stdout(Stdio::null()).spawn()?);
    }
    wait_until("all wait", || queue(&daemon, "x").is_ok_and(|q| q.0 == waiters));
    println!("{waiters} clients started and queued in {:.2?}", begun.elapsed());

    let after = private_kib(daemon.pid())?;
    let kib_each = (after.saturating_sub(before)) as f64 / waiters as f64;
    let begun = Instant::now();
    let shown = daemon.canal(&["status"]).output()?;
    let lines = shown.stdout.split(|b| *b == b'\n').count();
    println!("canal status: {lines} lines in {:.2?}", begun.elapsed());
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
    assert_eq!(failed, 0, "every client must have run");
    println!("drained in {took:.2?}; left: {:?} (waiting, held)", queue(&daemon, "x")?);
    Ok(Figures { kib_each, drained_us_each: took.as_secs_f64() * 1e6 / waiters as f64 })
}

fn main() -> io::Result<()> {
    let most: u64 = std::env::var("WAITERS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let mut first = None;
    for waiters in [most / 10, most / 3, most] {
        let Figures { kib_each, drained_us_each } = with_waiters(waiters)?;
        let memory = format!("{kib_each:.2} KiB");
        row(&format!("memory of the daemon per waiter, {waiters}"), &memory, "", "", "≤ 2 KiB");
        let base = *first.get_or_insert(drained_us_each);
        row(
            &format!("drained per waiter, {waiters} `canal run -- true`"),
            &format!("{drained_us_each:.0} µs"),
            &format!("{base:.0} µs, {} of them", most / 10),
            &format!("{:.2}", drained_us_each / base),
            "linear: about 1",
        );
    }
    Ok(())
}
