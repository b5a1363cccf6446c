//! Measures how good estimates are: compares the estimate at the start of each wait with its
//! length.
//!
//! `cargo test -p canal-history measured -- --nocapture` prints the table of `docs/stats.md` for
//! generated workloads. `CANAL_RECORDED=FILE` adds the workloads recorded in FILE, the output of
//! `canal history KEY --json`.
//!
//! Invariant: an estimate knows only requests that had ended when it was made.

use std::collections::VecDeque;

use super::*;

/// A request that was granted, in milliseconds.
#[derive(Clone, Debug)]
struct Job {
    asked_ms: u64,
    begin_ms: u64,
    end_ms: u64,
    command: String,
}

/// Requests for a key, the earliest first.
struct Workload {
    name: String,
    slots: u64,
    jobs: Vec<Job>,
}

/// Estimates and outcomes of all waits of a workload.
#[derive(Debug, Default)]
struct Figures {
    waits: u64,
    /// The sum of the waits, in milliseconds.
    waited: f64,
    /// The error of the median, in milliseconds.
    wrong: f64,
    /// The error of position × median hold.
    wrong_naive: f64,
    /// The error of position × median hold / slots.
    wrong_shared: f64,
    /// The number of waits that were at most the estimated p90.
    below_high: u64,
    /// The number that were shorter than the estimated p10.
    below_low: u64,
}

impl Figures {
    fn share_below_high(&self) -> f64 {
        self.below_high as f64 / self.waits as f64
    }
}

/// A number in 0..1.
fn random(state: &mut u64) -> f64 {
    (next(state) >> 11) as f64 / (1_u64 << 53) as f64
}

fn exponential(mean: f64, state: &mut u64) -> f64 {
    -mean * (1.0 - random(state)).ln()
}

/// A length with a log-normal distribution, like those of builds and tests.
fn log_normal(median: f64, spread: f64, state: &mut u64) -> f64 {
    let (angle, radius) = (random(state), 1.0 - random(state));
    let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
    median * (spread * normal).exp()
}

/// Serves requests in their order: each takes the slot that is free first.
fn served(name: &str, slots: usize, asked: Vec<(f64, f64, &str)>) -> Workload {
    let mut free_at = vec![0; slots];
    let jobs = asked.into_iter().map(|(asked, held, command)| {
        let asked_ms = asked as u64;
        let slot = free_at.iter_mut().min().unwrap();
        let begin_ms = asked_ms.max(*slot);
        *slot = begin_ms + held as u64;
        Job { asked_ms, begin_ms, end_ms: *slot, command: command.to_owned() }
    });
    Workload { name: name.to_owned(), slots: slots as u64, jobs: jobs.collect() }
}

const COUNT: usize = 1_200;

fn generated() -> Vec<Workload> {
    let minute = 60_000.0;
    let mut state = 20;
    let mut all = Vec::new();
    // A build farm: three commands of very different lengths.
    for slots in [1_usize, 3] {
        let mut at = 0.0;
        let jobs = (0..COUNT).map(|_| {
            at += exponential(5.0 * minute / slots as f64, &mut state);
            let (command, median, spread) = match random(&mut state) {
                share if share < 0.5 => ("unit tests", 2.0 * minute, 0.3),
                share if share < 0.8 => ("build", 4.0 * minute, 0.5),
                _ => ("deploy", 8.0 * minute, 0.4),
            };
            (at, log_normal(median, spread, &mut state), command)
        });
        let jobs = jobs.collect();
        all.push(served(
            &format!("three commands, {} slot{}", slots, if slots == 1 { "" } else { "s" }),
            slots,
            jobs,
        ));
    }
    // The textbook case: each length is unpredictable.
    let mut at = 0.0;
    let jobs = (0..COUNT).map(|_| {
        at += exponential(minute, &mut state);
        (at, exponential(1.7 * minute, &mut state), "job")
    });
    let jobs = jobs.collect();
    all.push(served("exponential, 2 slots", 2, jobs));
    // At each full hour, eight jobs arrive at once.
    let jobs = (0..COUNT).map(|n| {
        let hour = (n / 8) as f64 * 60.0 * minute;
        (hour, log_normal(5.0 * minute, 0.6, &mut state), ["backup", "report"][n % 2])
    });
    let jobs = jobs.collect();
    all.push(served("cron, 1 slot", 1, jobs));
    // Each job is a little longer than the one before: over the workload, they double.
    let mut at = 0.0;
    let jobs = (0..COUNT).map(|n| {
        let longer = 1.0 + n as f64 / COUNT as f64;
        at += exponential(4.0 * minute * longer, &mut state);
        (at, log_normal(3.0 * minute * longer, 0.3, &mut state), "suite")
    });
    let jobs = jobs.collect();
    all.push(served("growing, 1 slot", 1, jobs));
    all
}

/// The workloads of a file that `canal history --json` wrote, one for each key.
fn recorded(path: &str) -> Vec<Workload> {
    let text = std::fs::read_to_string(path).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut keys = BTreeMap::<String, (u64, Vec<Job>)>::new();
    for record in found["records"].as_array().unwrap() {
        let asked: jiff::Timestamp = record["asked"].as_str().unwrap().parse().unwrap();
        let Some(held_ms) = record["held_ms"].as_u64() else { continue };
        let item = &record["items"][0];
        // `slots` is a number only if the hold has one slot.
        let slot = item["slots"].as_str().and_then(|slots| slots.parse::<u64>().ok());
        let Some(slot) = slot.filter(|_| record["at_least"].is_null()) else { continue };
        let asked_ms = u64::try_from(asked.as_millisecond()).unwrap();
        let begin_ms = asked_ms + record["waited_ms"].as_u64().unwrap();
        let command = record["command"].as_str().unwrap_or_default().to_owned();
        let job = Job { asked_ms, begin_ms, end_ms: begin_ms + held_ms, command };
        let (slots, jobs) = keys.entry(item["key"].as_str().unwrap().to_owned()).or_default();
        // While a request waits, all slots are held.
        *slots = (*slots).max(slot + 1);
        jobs.push(job);
    }
    let workload = |(key, (slots, mut jobs)): (String, (u64, Vec<Job>))| {
        jobs.sort_by_key(|job| job.asked_ms);
        Workload { name: format!("recorded: {key}"), slots, jobs }
    };
    keys.into_iter().map(workload).collect()
}

/// Makes an estimate whenever a request begins to wait, and compares it with the outcome.
fn measure(workload: &Workload) -> Figures {
    let jobs = &workload.jobs;
    let mut ends: Vec<usize> = (0..jobs.len()).collect();
    ends.sort_by_key(|at| jobs[*at].end_ms);
    let mut ends = ends.into_iter().peekable();
    let (mut summary, mut lately) = (Summary::default(), VecDeque::new());
    let mut figures = Figures::default();
    for (at, job) in jobs.iter().enumerate() {
        let now = job.asked_ms;
        while let Some(ended) = ends.next_if(|ended| jobs[*ended].end_ms <= now) {
            let held_ms = jobs[ended].end_ms - jobs[ended].begin_ms;
            summary.add("k", &jobs[ended].command, held_ms);
            lately.push_back(held_ms);
            if lately.len() > 64 {
                lately.pop_front();
            }
        }
        if job.begin_ms <= now {
            continue;
        }
        let usual = |job: &Job| summary.usual("k", &job.command);
        let before = &jobs[..at];
        let holders = before.iter().filter(|it| it.begin_ms <= now && now < it.end_ms);
        let holders: Vec<Holder> = holders
            .map(|it| Holder { count: 1, held_ms: now - it.begin_ms, usual: usual(it) })
            .collect();
        let waiters = before.iter().filter(|it| it.begin_ms > now).chain([job]);
        let waiters: Vec<Waiter> = waiters
            .map(|it| Waiter { count: 1, capacity: workload.slots, usual: usual(it) })
            .collect();
        let Some(Some(said)) = estimates(&holders, &waiters).pop() else { continue };
        let waited = job.begin_ms - now;
        let mut sorted: Vec<u64> = lately.iter().copied().collect();
        sorted.sort_unstable();
        let naive = waiters.len() as f64 * sorted[(sorted.len() - 1) / 2] as f64;
        figures.waits += 1;
        figures.waited += waited as f64;
        figures.wrong += waited.abs_diff(said.median_ms) as f64;
        figures.wrong_naive += (waited as f64 - naive).abs();
        figures.wrong_shared += (waited as f64 - naive / workload.slots as f64).abs();
        figures.below_high += u64::from(waited <= said.high_ms);
        figures.below_low += u64::from(waited < said.low_ms);
    }
    figures
}

/// A line of the table: the error as a share of the time waited.
fn line(name: &str, of: &Figures) -> String {
    let share = |part: f64| format!("{:.0} %", part / of.waited * 100.0);
    let of_all = |count: u64| format!("{:.0} %", count as f64 / of.waits as f64 * 100.0);
    format!(
        "| {name} | {} | {} | {} | {} | {} | {} |",
        of.waits,
        share(of.wrong),
        share(of.wrong_naive),
        share(of.wrong_shared),
        of_all(of.below_high),
        of_all(of.below_low),
    )
}

#[test]
fn measured_waits_end_as_was_said() {
    println!(
        "| workload | waits | wrong by | position × median | the same / slots | below p90 | below p10 |"
    );
    println!("|---|---|---|---|---|---|---|");
    let (mut waits, mut below) = (0, 0);
    for workload in generated() {
        let figures = measure(&workload);
        println!("{}", line(&workload.name, &figures));
        assert!(figures.waits > 200, "{}: {figures:?}", workload.name);
        let naive = figures.wrong_naive.min(figures.wrong_shared);
        assert!(figures.wrong < naive, "{}: {figures:?}", workload.name);
        let share = figures.share_below_high();
        assert!((0.80..=0.97).contains(&share), "{}: {share}", workload.name);
        (waits, below) = (waits + figures.waits, below + figures.below_high);
    }
    let share = below as f64 / waits as f64;
    assert!((0.85..=0.95).contains(&share), "{share}");
    if let Ok(path) = std::env::var("CANAL_RECORDED") {
        for workload in recorded(&path) {
            let figures = measure(&workload);
            println!("{}", line(&workload.name, &figures));
        }
    }
}
