//! The effect of growth: of the size of a lock, the number of keys ever used, and the number of
//! processes that hold, including the restart of the daemon.
//!
//! `cargo bench --bench scale`. Needs resources for 10,000 processes and as many descriptors in the
//! daemon. `HOLDERS=N` uses fewer holders, `KEYS=N` fewer than a million keys, and `CANAL=PATH`
//! measures another build of canal.

mod common;

use std::error::Error;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use canal::client::{Client, Start, tag};
use canal::protocol::paths::Place;
use canal::protocol::{Acquire, RequestTag, StatusQuery, WireItem};
use canal::sys::pidfd::Pidfd;
use common::{Children, Daemon, private_kib, row};

/// How many pairs to send before reading their answers.
const DEPTH: usize = 16;

/// One connection that acquires and releases locks.
struct Pairs {
    stream: UnixStream,
    next: usize,
}

impl Pairs {
    fn new(daemon: &Daemon) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::connect(daemon.socket())?, next: 0 })
    }

    /// Acquires and releases `count` locks in turn: the key of each, and the number of buckets.
    fn run(&mut self, count: usize, key: impl Fn(usize) -> String, buckets: u64) -> io::Result<()> {
        let mut done = 0;
        while done < count {
            let some = DEPTH.min(count - done);
            let mut request = String::new();
            for n in self.next..self.next + some {
                let key = key(n);
                request += &format!(
                    r#"{{"method":"io.canal.Lock.Acquire","parameters":{{"tag":"{n:032x}","items":[{{"key":"{key}","per":1,"buckets":{buckets}}}],"wait_ms":0,"command":"bench"}}}}"#
                );
                request.push('\0');
                request += &format!(
                    r#"{{"method":"io.canal.Lock.Release","parameters":{{"key":"{key}"}}}}"#
                );
                request.push('\0');
            }
            self.stream.write_all(request.as_bytes())?;
            self.take(2 * some)?;
            self.next += some;
            done += some;
        }
        Ok(())
    }

    fn take(&mut self, mut replies: usize) -> io::Result<()> {
        let mut reply = [0; 16 * 1024];
        while replies > 0 {
            let size = self.stream.read(&mut reply)?;
            assert!(size > 0, "the connection was closed");
            let text = String::from_utf8_lossy(&reply[..size]);
            assert!(!text.contains("\"error\""), "{text}");
            replies -= text.bytes().filter(|byte| *byte == 0).count();
        }
        Ok(())
    }
}

/// The time per operation, in microseconds.
fn each(took: Duration, count: usize) -> f64 {
    took.as_secs_f64() * 1e6 / count as f64
}

fn buckets() -> io::Result<()> {
    let daemon = Daemon::start()?;
    let mut pairs = Pairs::new(&daemon)?;
    let sizes = [1, 1_000, 1_000_000];
    let mut figures = vec![Vec::new(); sizes.len()];
    for _ in 0..20 {
        for (size, figures) in sizes.iter().zip(&mut figures) {
            let begun = Instant::now();
            pairs.run(500, |_| "x".to_owned(), *size)?;
            figures.push(each(begun.elapsed(), 500));
        }
    }
    let medians = figures.iter_mut().map(|figures| {
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    });
    let medians: Vec<f64> = medians.collect();
    for (size, median) in sizes.iter().zip(&medians) {
        let what = format!("acquire and release with {size} buckets");
        let ratio = format!("{:.2}", median / medians[0]);
        row(
            &what,
            &format!("{median:.1} µs"),
            &format!("{:.1} µs with 1", medians[0]),
            &ratio,
            "flat",
        );
    }
    Ok(())
}

fn keys(most: usize) -> io::Result<()> {
    let mut first = None;
    for count in [most / 100, most / 10, most] {
        let daemon = Daemon::start()?;
        let mut pairs = Pairs::new(&daemon)?;
        pairs.run(1_000, |n| format!("warm/{n}"), 1)?;
        let before = private_kib(daemon.pid())?;
        let begun = Instant::now();
        pairs.run(count, |n| format!("keys/{n}"), 1)?;
        let figure = each(begun.elapsed(), count);
        let grown = private_kib(daemon.pid())?.saturating_sub(before);
        let base = *first.get_or_insert(figure);
        let what = format!("acquire and release, each of {count} keys once");
        let ours = format!("{figure:.1} µs, {grown} KiB more memory");
        let theirs = format!("{base:.1} µs with {}", most / 100);
        row(&what, &ours, &theirs, &format!("{:.2}", figure / base), "flat");
    }
    Ok(())
}

/// Starts `count` processes, each of which holds a lock.
fn holders(count: usize) -> Result<(), Box<dyn Error>> {
    let mut daemon = Daemon::start()?;
    let mut sleepers = Children(Vec::new());
    for _ in 0..count {
        let mut sleep = Command::new("sleep");
        sleepers.0.push(sleep.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
    }
    let place = Place::find(Some(&daemon.socket()), nix::unistd::geteuid().as_raw())?;
    let mut client = Client::connect(&place, Start::Never)?;
    let before = private_kib(daemon.pid())?;
    let begun = Instant::now();
    for (n, sleeper) in sleepers.0.iter().enumerate() {
        let item =
            WireItem { key: format!("jobs/{n}").into(), slots: Some(1), ..WireItem::default() };
        let request: Acquire = serde_json::from_value(serde_json::json!({
            "tag": tag()?, "items": [item], "wait_ms": 0, "command": "sleep 1000",
        }))?;
        let owner = Pidfd::open(sleeper.id())?;
        client.acquire(&request, Some(&owner), &mut |_| Ok(None))?;
        client.confirm(&RequestTag { tag: request.tag })?;
    }
    let figure = each(begun.elapsed(), count);
    let kib = private_kib(daemon.pid())?.saturating_sub(before) as f64 / count as f64;
    let what = format!("a lock for each of {count} processes");
    row(&what, &format!("{figure:.0} µs and {kib:.2} KiB each"), "", "", "");

    let mut restarts = Vec::new();
    for _ in 0..5 {
        restarts.push(daemon.restart()?);
    }
    restarts.sort_unstable();
    let mut client = Client::connect(&place, Start::Never)?;
    let status = client.status(&StatusQuery::default())?;
    let held: u64 = status.keys.iter().map(|key| key.held).sum();
    assert_eq!(held, count as u64, "everything is still held");
    let what = format!("restart of the daemon with {count} holds in as many processes");
    let goal = if count >= 10_000 { "≤ 200 ms" } else { "" };
    row(&what, &format!("{:.0} ms", restarts[2].as_secs_f64() * 1e3), "", "", goal);
    Ok(())
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn main() -> Result<(), Box<dyn Error>> {
    buckets()?;
    keys(number("KEYS", 1_000_000))?;
    let most = number("HOLDERS", 10_000);
    for count in [most / 100, most / 10, most] {
        holders(count)?;
    }
    Ok(())
}
