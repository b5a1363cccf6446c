//! A daemon that has kept millions of records: how long it takes to start, and `canal history` and
//! `canal stats` of one key.
//! `CANAL_RECORDS=10000000 CANAL_RECORDS_DIR=DIR cargo test -p canal-history many_records` writes
//! the records.
//!
//! `CANAL_RECORDS_DIR=DIR cargo bench --bench records`. This moves the records, and removes them at
//! the end.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

#[path = "../common/mod.rs"]
mod common;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Daemon, median, row};

const STARTS: usize = 21;

const CONFIG: &str = "[history]\nkeep = \"3000d\"\nmax = \"10GiB\"\n";

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The duration of a command in milliseconds: the median of five runs.
fn command(daemon: &Daemon, args: &[&str]) -> io::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let begun = Instant::now();
        let output = daemon.canal(args).output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        times.push(ms(begun.elapsed()));
    }
    Ok(median(times))
}

fn main() -> io::Result<()> {
    let Some(dir) = std::env::var_os("CANAL_RECORDS_DIR").map(PathBuf::from) else {
        println!("| a history of many records | CANAL_RECORDS_DIR is not set | | | |");
        return Ok(());
    };
    let mut empty = Daemon::configured(CONFIG)?;
    let mut full = Daemon::configured(CONFIG)?;
    let _ = std::fs::remove_dir_all(full.folder.path().join("history"));
    std::fs::rename(dir.join("history"), full.folder.path().join("history"))?;
    let (mut starts, mut more) = ([Vec::new(), Vec::new()], Vec::new());
    for round in 0..STARTS {
        // Each of the two is first half of the time.
        let (first, second) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        let mut times = [0.0; 2];
        for number in [first, second] {
            let daemon = if number == 0 { &mut empty } else { &mut full };
            times[number] = ms(daemon.restart()?);
            starts[number].push(times[number]);
            // The thread of the history starts with the first query, and reads the latest files
            // then.
            command(daemon, &["history", "-n", "1"])?;
        }
        more.push(times[1] - times[0]);
    }
    let [without, with] = starts.map(median);
    let more = format!("{:+.1} ms", median(more));
    row(
        "start of the daemon",
        &format!("{with:.1} ms"),
        &format!("{without:.1} ms (no records)"),
        &more,
        "≤ +20 ms",
    );
    for args in [&["history", "build/7"][..], &["history"], &["stats", "build/7"]] {
        let took = command(&full, args)?;
        let goal = if args.len() > 1 { "< 1 s" } else { "" };
        row(&format!("`canal {}`", args.join(" ")), &format!("{took:.0} ms"), "", "", goal);
    }
    Ok(())
}
