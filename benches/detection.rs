//! Measures how long the lock table takes to decide whether a wait is a deadlock, by how much of
//! the wait-for graph it examines, and how that grows.
//!
//! `cargo bench --bench detection`. The largest of three sizes is 2,000 sessions with 20,000 holds
//! and waits; `SESSIONS=N` sets another size. There is no daemon.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use canal::core::{
    Ask, Change, Command, ENTRY_VERSION, Entry, FrameId, HostId, Item, Key, KeyError, Outcome,
    Owner, ProcessId, Refusal, Request, Revision, Table, Tag, UnixMillis, View, Wait,
};

/// How many unwanted holds each session has. With those of a shape, each has ten holds and waits.
const OTHER_HOLDS: usize = 8;
/// How many entries to time when all are alike.
const PROBES: usize = 20;

/// A table that times its operations.
struct World {
    table: Table,
    tags: u128,
}

/// The result of a request, and its duration.
struct Answer {
    took: Duration,
    granted: bool,
    victims: usize,
}

/// The result of one shape at one size.
struct Figure {
    what: &'static str,
    things: usize,
    took: Duration,
}

impl World {
    fn new() -> Self {
        Self { table: Table::default(), tags: 0 }
    }

    fn ask(&mut self, pid: usize, items: Vec<Item>) -> Answer {
        self.tags += 1;
        let process =
            ProcessId { pid: u32::try_from(pid).unwrap_or(u32::MAX), started: 1, inode: 0 };
        self.apply(Change::Request(Arc::new(Request {
            tag: Tag(self.tags),
            host: HostId(0),
            owner: Owner::Process(process),
            parent: None,
            uid: 1000,
            command: Command(format!("job {pid}")),
            note: None,
            items,
            wait: Wait::Yes { until: None },
            priority: 0,
            max_waiting: None,
            supersede: None,
            max_run_ms: None,
            provisional: false,
            children: false,
            ttl_ms: None,
            on_lost: Default::default(),
            asker: None,
            over_nodes: None,
            above: None,
        })))
    }

    fn apply(&mut self, change: Change) -> Answer {
        let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
        let mut outcomes = Vec::new();
        let begun = Instant::now();
        self.table.apply(Revision(self.table.revision().0 + 1), &entry, &mut outcomes);
        let took = begun.elapsed();
        let victim = |outcome: &&Outcome| {
            matches!(outcome, Outcome::Refused { why: Refusal::Deadlock { .. }, .. })
        };
        let granted = matches!(outcomes.first(), Some(Outcome::Granted(_)));
        Answer { took, granted, victims: outcomes.iter().filter(victim).count() }
    }

    fn end(&mut self, pid: usize) {
        let process =
            ProcessId { pid: u32::try_from(pid).unwrap_or(u32::MAX), started: 1, inode: 0 };
        let frame = self.table.frame_of(HostId(0), &Owner::Process(process));
        self.apply(Change::End { frame: frame.unwrap_or(FrameId(0)) });
    }

    /// Sessions `1..=n`, each with its own items and with holds that no session asks for.
    fn sessions(n: usize, own: impl Fn(usize) -> Result<Item, KeyError>) -> Result<Self, KeyError> {
        let mut world = Self::new();
        for pid in 1..=n {
            assert!(world.ask(pid, vec![own(pid)?]).granted, "{pid} must be granted its own");
            for at in 0..OTHER_HOLDS {
                let other = item(&format!("other/{pid}/{at}"), Ask::Read)?;
                assert!(world.ask(pid, vec![other]).granted, "{pid} must be granted the rest");
            }
        }
        Ok(world)
    }

    fn figure(&self, what: &'static str, took: Duration) -> Figure {
        Figure { what, things: self.table.holds().len() + self.table.waiters().len(), took }
    }
}

fn item(name: &str, ask: Ask) -> Result<Item, KeyError> {
    Ok(Item { key: Key::new(name)?, ask })
}

fn own(pid: usize) -> Result<Item, KeyError> {
    item(&format!("own/{pid}"), Ask::Write)
}

fn mean(answers: &[Answer]) -> Duration {
    let total: Duration = answers.iter().map(|answer| answer.took).sum();
    total / u32::try_from(answers.len().max(1)).unwrap_or(u32::MAX)
}

/// A chain of all sessions: the first waits for the second, and so on.
fn chain(n: usize) -> Result<Vec<Figure>, KeyError> {
    let mut world = World::sessions(n, own)?;
    let mut links = Vec::new();
    for pid in 1..n {
        links.push(world.ask(pid, vec![own(pid + 1)?]));
    }
    let mut figures = vec![world.figure("a wait for one who does not wait", mean(&links))];
    // A session that waits for the first one, and holds something that another session wants, waits
    // for all.
    let mut behind = Vec::new();
    for pid in n + 1..=n + PROBES {
        assert!(world.ask(pid, vec![own(pid)?]).granted, "it is the only one");
        assert!(!world.ask(pid + PROBES, vec![own(pid)?]).granted, "it is held");
        behind.push(world.ask(pid, vec![own(1)?]));
        world.end(pid);
        world.end(pid + PROBES);
    }
    assert!(behind.iter().all(|answer| !answer.granted && answer.victims == 0), "no ring yet");
    figures.push(world.figure("a wait for a chain of all", mean(&behind)));
    let closing = world.ask(n, vec![own(1)?]);
    assert_eq!(closing.victims, 1, "one closes the ring");
    figures.push(world.figure("the wait that closes a ring of all", closing.took));
    Ok(figures)
}

/// Pairs that wait for each other.
fn pairs(n: usize) -> Result<Vec<Figure>, KeyError> {
    let mut world = World::sessions(n, own)?;
    let mut closing = Vec::new();
    for pid in (1..n).step_by(2) {
        assert!(!world.ask(pid, vec![own(pid + 1)?]).granted, "it must wait");
        closing.push(world.ask(pid + 1, vec![own(pid)?]));
    }
    assert!(closing.iter().all(|answer| answer.victims == 1), "each pair has a victim");
    Ok(vec![world.figure("a ring of two among many", mean(&closing))])
}

/// One key that all sessions hold.
fn hot(n: usize) -> Result<Vec<Figure>, KeyError> {
    let hot = |ask| item("hot", ask);
    let view = View::Buckets { per: n as u64, buckets: 1 };
    let slot = || hot(Ask::slots(1, Some(view)));
    let mut world = World::sessions(n, |_| slot())?;
    let mut waits = Vec::new();
    for pid in n + 1..=n + PROBES {
        assert!(world.ask(pid, vec![own(pid)?]).granted, "it is its own");
        waits.push(world.ask(pid, vec![slot()?]));
    }
    let mut figures = vec![world.figure("a wait for a slot that all hold", mean(&waits))];
    let mut no_ring = Vec::new();
    for pid in 1..=PROBES {
        no_ring.push(world.ask(pid, vec![own(n + pid)?]));
    }
    assert!(no_ring.iter().all(|answer| answer.victims == 0), "the other holders can finish");
    figures.push(world.figure("a holder waits for one who waits for it", mean(&no_ring)));

    let mut world = World::sessions(n, |_| hot(Ask::Read))?;
    let writer = n + 1;
    assert!(world.ask(writer, vec![own(writer)?]).granted, "it is its own");
    world.ask(writer, vec![hot(Ask::Write)?]);
    let mut closing = Vec::new();
    for pid in 1..=PROBES {
        closing.push(world.ask(pid, vec![own(writer)?]));
        assert_eq!(closing.last().map(|answer| answer.victims), Some(1), "a ring of two");
        // The writer is the youngest, so it is the victim, and asks again.
        world.end(pid);
        world.ask(writer, vec![hot(Ask::Write)?]);
    }
    figures.push(world.figure("a ring through a key that all read", mean(&closing)));
    Ok(figures)
}

/// One key that all sessions wait for, each while it holds something.
fn queue(n: usize) -> Result<Vec<Figure>, KeyError> {
    let hot = || item("hot", Ask::Write);
    let mut world = World::sessions(n, own)?;
    world.ask(n + 1, vec![hot()?]);
    let mut last = Vec::new();
    let begun = Instant::now();
    for pid in 1..=n {
        last.push(world.ask(pid, vec![hot()?]));
    }
    let took = begun.elapsed();
    let tail = last.split_off(n.saturating_sub(PROBES));
    Ok(vec![
        world.figure("a holder joins a queue of all", mean(&tail)),
        world.figure("all holders join a queue", took),
    ])
}

fn main() -> ExitCode {
    let largest = std::env::var("SESSIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let sizes = [largest / 100, largest / 10, largest].map(|size: usize| size.max(PROBES + 2));
    println!(
        "{:42} {:>9} {:>14} {:>12} {:>9}",
        "what", "sessions", "holds and waits", "time", "growth"
    );
    for shape in [chain, pairs, hot, queue] {
        let mut before: Vec<Duration> = Vec::new();
        for size in sizes {
            let figures = match shape(size) {
                Ok(figures) => figures,
                Err(error) => {
                    println!("{error}");
                    return ExitCode::FAILURE;
                }
            };
            for (at, figure) in figures.iter().enumerate() {
                let growth = before.get(at).map(|before| {
                    format!("x {:.1}", figure.took.as_secs_f64() / before.as_secs_f64())
                });
                let (growth, took) = (growth.unwrap_or_default(), format!("{:.1?}", figure.took));
                let Figure { what, things, .. } = figure;
                println!("{what:42} {size:>9} {things:>14} {took:>12} {growth:>9}");
            }
            before = figures.iter().map(|figure| figure.took).collect();
        }
        println!();
    }
    ExitCode::SUCCESS
}
