//! Simulated machines around the real daemon, driven by a seed: the daemon's own code runs on a
//! simulated kernel ([`canal_sys::kernel::simulated`]) with simulated clients, in one thread.
//! Daemons, processes, disks, machines, the network and the engine fail as [`profile`] draws.
//! `CANAL_SEED=n` runs that seed alone, with the log of its daemons, `CANAL_SEEDS=n` runs n seeds,
//! and `CANAL_SEEDS=a..b` runs those from a up to before b.
//!
//! The simulator replaces the kernel, not the effects of the daemon's decisions, so that decoding,
//! flow control, file writes and start-up run for real. A third of a seed's time goes to real
//! system calls. Their effects must not depend on what else runs on the machine, and the content of
//! files not on anything but the seed: a fault strikes after a number of bytes.
//!
//! Invariant: at each step the locks that commands hold fit, and the tables of all hosts show them
//! as held; tokens grow, the daemon answers every call in time, and no hold belongs to a dead
//! process. At the end, nothing is left or stuck.

mod check;
mod fault_profile;
mod faults;
mod host;
mod machine;
mod network;
mod programs;
mod rule;
mod watch;
mod world;

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use fault_profile::FaultProfile;
pub(crate) use rule::{Rule, is_broken, unless_broken};
use world::{FOLDER, STEP, Seen, World};

use canal_log::sim::engine::Counts;
use canal_sys::{fds, rerun};

/// How many seeds every test run tries.
const SEEDS: u64 = 500;

/// How many seeds every test run tries over an engine.
const SEEDS_OVER_ENGINE: u64 = 500;

/// How many seeds to try at most until one finds a broken rule.
const SEEDS_TO_FIND: u64 = 1_000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seeds to try: those in `CANAL_SEEDS`, or the usual number.
fn seeds(usual: u64) -> Range<u64> {
    let Ok(stated) = std::env::var("CANAL_SEEDS") else { return 0..usual };
    let parse = |text: &str| text.parse().expect("CANAL_SEEDS is `COUNT` or `FIRST..END`");
    match stated.split_once("..") {
        Some((first, end)) => parse(first)..parse(end),
        None => 0..parse(&stated),
    }
}

fn run(seed: u64, over_engine: bool, broken: Option<Rule>) -> Result<Seen, String> {
    rule::break_rule(broken);
    let run = AssertUnwindSafe(|| World::new(seed, over_engine).run());
    let ran = catch_unwind(run).unwrap_or_else(|_| Err("it panicked".to_owned()));
    rule::break_rule(None);
    ran
}

/// How many descriptors a run may need.
const DESCRIPTORS: u64 = 512;

/// How many runs to start at the same time per processor. A run waits at its end: the kernel takes
/// 10 to 20 ms to close an inotify instance.
const RUNS_PER_PROCESSOR: u64 = 4;

/// How many runs to start at the same time, limited by the descriptors.
fn threads() -> u64 {
    let processors = std::thread::available_parallelism().map_or(2, |count| count.get() as u64);
    let most = processors * RUNS_PER_PROCESSOR;
    let descriptors = fds::raise_limit(most * DESCRIPTORS).unwrap_or(DESCRIPTORS);
    most.min(descriptors / DESCRIPTORS).max(1)
}

/// Runs seeds on all processors. Returns the first failure, or the statistics of all.
fn run_all(
    seeds: Range<u64>,
    over_engine: bool,
    broken: Option<Rule>,
) -> Result<Seen, (u64, String)> {
    let next = AtomicU64::new(seeds.start);
    let one = || {
        let mut all = Seen::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(all);
            }
            match run(seed, over_engine, broken) {
                Ok(seen) => all.add(seen),
                Err(what) => {
                    next.store(seeds.end, Ordering::Relaxed);
                    return Err((seed, what));
                }
            }
        }
    };
    let threads = threads();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let mut all = Seen::default();
        for thread in running {
            all.add(thread.join().unwrap()?);
        }
        Ok(all)
    })
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.grants += other.grants;
        self.daemons += other.daemons;
        let Counts { gone, succeeded, snapshots, losses } = other.engine;
        self.engine.gone += gone;
        self.engine.succeeded += succeeded;
        self.engine.snapshots += snapshots;
        self.engine.losses += losses;
        for (why, times) in other.refused {
            *self.refused.entry(why).or_default() += times;
        }
    }
}

/// Runs seeds, all of which must succeed.
fn all_is_well(over_engine: bool, usual: u64) {
    let found = match variable("CANAL_SEED") {
        Some(seed) => {
            let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
            let _ = log.with_ansi(false).without_time().try_init();
            run(seed, over_engine, None).map_err(|what| (seed, what))
        }
        None => run_all(seeds(usual), over_engine, None),
    };
    match found {
        Ok(seen) => {
            println!("{seen:?}");
            let Counts { gone, succeeded, snapshots, losses } = seen.engine;
            let is_stated = |name: &&str| std::env::var_os(name).is_some();
            let is_alone = ["CANAL_SEED", "CANAL_SEEDS"].iter().any(is_stated);
            let all = [gone, succeeded, snapshots, losses];
            assert!(
                is_alone || !over_engine || all.iter().all(|times| *times > 0),
                "something never happened: {seen:?}"
            );
        }
        Err((seed, what)) => panic!("CANAL_SEED={seed}: {what}"),
    }
}

/// Runs each test in a separate process: processes that other tests start inherit descriptors for a
/// moment, so a connection or a lock would seem to outlive its owner.
macro_rules! in_own_process {
    ($($(#[$about:meta])* fn $test:ident, $scene:ident $body:block)+) => {
        $(
            $(#[$about])*
            #[test]
            fn $test() {
                let output = rerun::run(concat!("sim::", stringify!($scene)), "");
                println!("{}", String::from_utf8_lossy(&output.stdout));
            }

            #[test]
            #[ignore = "a scene of the test before it"]
            fn $scene() {
                if rerun::plays(concat!("sim::", stringify!($scene))) {
                    $body
                }
            }
        )+
    };
}

in_own_process! {
    fn a_daemon_with_a_journal_keeps_its_promises_whatever_goes_wrong, journal {
        all_is_well(false, SEEDS);
    }

    fn daemons_over_an_engine_keep_their_promises_whatever_goes_wrong, engine {
        all_is_well(true, SEEDS_OVER_ENGINE);
    }

    fn a_seed_decides_everything, replay {
        for (seed, over_engine) in REPEATED {
            let [first, second] = [(); 2].map(|()| log_of(|| run(seed, over_engine, None)));
            if let Some(differs) = first_difference(&first, &second) {
                panic!("CANAL_SEED={seed}: two runs differ: {differs}");
            }
            assert!(first.iter().any(|line| line.contains(STEP)), "no step is logged");
        }
    }

    fn a_grant_that_is_not_told_is_found, untold_grant {
        let what = found(Rule::GrantsAreTold, 2);
        let is = |word: &&str| what.contains(*word);
        assert!(["is not answered", "stuck", "no owner any more"].iter().any(is), "{what}");
    }

    fn a_death_that_is_not_noticed_is_found, unnoticed_death {
        let what = found(Rule::DeathsAreNoticed, 0);
        assert!(what.contains("has no owner any more"), "{what}");
    }

    fn a_process_that_is_known_by_its_pid_is_found, reused_pid {
        let what = found(Rule::InodesIdentifyProcesses, 8);
        assert!(what.contains("has no owner any more"), "{what}");
    }

    fn an_answer_before_its_record_is_found, early_answer {
        let what = found(Rule::RecordsComeFirst, 8);
        assert!(is_overlap(&what), "{what}");
    }

    fn a_lease_that_ends_early_is_found, short_lease {
        let what = found(Rule::LeasesLast, 9);
        assert!(is_overlap(&what), "{what}");
    }

    fn a_host_that_is_declared_gone_too_early_is_found, early_end {
        let what = found_over_engine(Rule::HostsLiveForTheirTtl, 29);
        assert!(is_overlap(&what), "{what}");
    }

    fn a_renewal_that_is_counted_from_its_answer_is_found, late_renewal {
        let what = found_over_engine(Rule::RenewalsCountWhenSent, 169);
        assert!(is_overlap(&what), "{what}");
    }

    fn a_grant_that_is_told_too_late_is_found, late_grant {
        let what = found_over_engine(Rule::GrantsAreInTime, 15);
        assert!(what.contains("was told after its deadline"), "{what}");
    }

    fn a_host_that_joins_while_its_earlier_commands_live_is_found, survivor {
        let what = found_over_engine(Rule::LostCommandsAreEnded, 38);
        assert!(is_overlap(&what), "{what}");
    }

    fn a_dead_waiter_that_is_not_withdrawn_is_found, dead_waiter {
        let what = found(Rule::DeadWaitersAreWithdrawn, 0);
        assert!(what.contains("waits for nobody"), "{what}");
    }

    fn a_log_that_changes_unnoticed_is_found, changed_log {
        found_over_engine(Rule::HistoriesAreCompared, 13);
    }

    fn a_recovery_that_does_not_wait_is_found, short_recovery {
        let what = found_over_engine(Rule::RecoveriesWait, 126);
        assert!(is_overlap(&what), "{what}");
    }

    fn a_token_that_no_host_reports_is_found, silent_host {
        let what = found_over_engine(Rule::ToldTokensAreReported, 11);
        assert!(what.contains("was told after"), "{what}");
    }

    fn an_old_grant_that_is_told_after_a_loss_is_found, old_grant {
        let what = found_over_engine(Rule::OldGrantsAreAskedAnew, 836);
        assert!(what.contains("was told after"), "{what}");
    }

    fn a_client_that_is_served_before_a_resting_host_has_read_is_found, unread_log {
        let what = found_over_engine(Rule::RestingHostsReadFirst, 1);
        assert!(what.contains("a client was served at"), "{what}");
    }
}

/// The seeds to repeat, one of each kind, and whether over an engine.
const REPEATED: [(u64, bool); 8] =
    [(7, false), (8, false), (7, true), (8, true), (11, true), (12, true), (14, true), (24, true)];

/// Everything that is logged while `work` runs on this thread, and its result.
fn log_of(work: impl FnOnce() -> Result<Seen, String>) -> Vec<String> {
    let file = Arc::new(tempfile::tempfile().unwrap());
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).without_time();
    let log = log.with_ansi(false).with_writer(file.clone()).finish();
    let result = tracing::subscriber::with_default(log, work);
    let (mut file, mut text) = (&*file, String::new());
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    let mut lines: Vec<String> = text.lines().map(nameless).collect();
    lines.push(nameless(&format!("{result:?}")));
    lines
}

/// A line without the random name of the folder of the run.
fn nameless(line: &str) -> String {
    let mut parts = line.split(FOLDER);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + FOLDER + part.trim_start_matches(char::is_alphanumeric))
}

/// Where two logs begin to differ.
fn first_difference(first: &[String], second: &[String]) -> Option<String> {
    let at = (0..first.len().max(second.len())).find(|at| first.get(*at) != second.get(*at))?;
    let before = first[at.saturating_sub(LINES_BEFORE)..at].join("\n");
    let line = |of: &[String]| of.get(at).cloned().unwrap_or_default();
    let (first, second) = (line(first), line(second));
    Some(format!("line {at}\n{before}\nfirst:  {first}\nsecond: {second}"))
}

/// How many lines to show before the first difference.
const LINES_BEFORE: usize = 20;

/// The failure found with a broken rule. `seed` found it earlier; if it no longer does, this tries
/// the other seeds.
fn found(broken: Rule, seed: u64) -> String {
    found_by(broken, seed, false)
}

/// The failure found with a broken rule over an engine.
fn found_over_engine(broken: Rule, seed: u64) -> String {
    found_by(broken, seed, true)
}

fn found_by(broken: Rule, seed: u64, over_engine: bool) -> String {
    let found = run(seed, over_engine, Some(broken)).map_err(|what| (seed, what));
    let found = found.and_then(|_| run_all(0..SEEDS_TO_FIND, over_engine, Some(broken)));
    let (seed, what) = found.expect_err("it was not found");
    println!("{broken:?} is found by seed {seed}: {what:.300}");
    run(seed, over_engine, None).expect("with all rules the same seed ends well");
    what
}

#[test]
#[ignore = "minutes; CANAL_SEEDS=400 cargo test -p canal-daemon sim::how_often -- --ignored --nocapture"]
fn how_often_seeds_find_broken_rules() {
    let seeds = variable("CANAL_SEEDS").unwrap_or(100);
    let only = std::env::var("CANAL_RULE").unwrap_or_default();
    for (broken, over_engine) in rule::ALL {
        if !format!("{broken:?}").contains(&only) {
            continue;
        }
        let next = AtomicU64::new(0);
        let one = || {
            let mut each: BTreeMap<String, (u64, u64)> = BTreeMap::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds {
                    return each;
                }
                let kind = FaultProfile::draw(&mut Rng::with_seed(seed), over_engine).kind;
                let (found, all) = each.entry(format!("{kind:?}")).or_default();
                if std::env::var("CANAL_KIND").is_ok_and(|it| format!("{kind:?}") != it) {
                    continue;
                }
                *found += u64::from(run(seed, over_engine, Some(broken)).is_err());
                *all += 1;
            }
        };
        let mut each: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads()).map(|_| scope.spawn(one)).collect();
            for (kind, (found, all)) in running.into_iter().flat_map(|it| it.join().unwrap()) {
                let sum = each.entry(kind).or_default();
                *sum = (sum.0 + found, sum.1 + all);
            }
        });
        let found: u64 = each.values().map(|(found, _)| found).sum();
        println!("{broken:?} is found by {found} of {seeds} seeds: {each:?}");
    }
}

fn is_overlap(what: &str) -> bool {
    ["runs on without its lock", "both are held", "more slots of", "was told after"]
        .iter()
        .any(|it| what.contains(it))
}
