//! Many hosts over a simulated engine, driven by a seed.
//!
//! Everything runs in one thread, in steps. Messages are delayed, lost and repeated; hosts are cut
//! off; daemons are killed and restarted; processes, daemons and machines are stopped for longer
//! than the TTL; clocks run at different rates. Each step checks that no more commands run than
//! fit. The end checks that nothing is left or stuck.
//!
//! `CANAL_SEED=n` runs that seed alone, `CANAL_SEEDS=n` runs n seeds.

mod check;
mod daemon;
pub(crate) mod direct;
mod faults;
mod history;
pub(crate) mod link;
mod machine;
mod rules;
pub(crate) mod server;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use faults::Fault;
use world::{Rulebook, Seen, World};

/// No rule is broken.
const USUAL: Rulebook = Rulebook {
    focus: &[],
    late_grants: false,
    late_start: false,
    hasty: false,
    no_clearing: false,
    blind: false,
    forget_dead_waiters: false,
    rewrite: false,
    impatient: false,
    silent: false,
    tells_lost: false,
    wrong_time: false,
};
/// How many seeds every test run tries; it takes a few seconds.
const SEEDS: u64 = 1000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(seed: u64, rules: Rulebook) -> Result<Seen, String> {
    let run = AssertUnwindSafe(|| World::new(seed, rules).run());
    catch_unwind(run).unwrap_or_else(|_| Err("it panicked".to_owned()))
}

/// Runs seeds on all processors. Returns the first that fails, or statistics of all.
fn run_all(seeds: u64, rules: Rulebook) -> Result<Seen, (u64, String)> {
    let next = AtomicU64::new(0);
    let one = || {
        let mut all = Seen::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return Ok(all);
            }
            match run(seed, rules) {
                Ok(seen) => all.add(seen),
                Err(what) => {
                    next.store(seeds, Ordering::Relaxed);
                    return Err((seed, what));
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
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
        self.hosts_gone += other.hosts_gone;
        self.adoptions += other.adoptions;
        self.deadlocks += other.deadlocks;
        self.losses += other.losses;
        self.snapshots += other.snapshots;
    }
}

fn all_is_well(seeds: u64, rules: Rulebook) -> Seen {
    let seeds = variable("CANAL_SEEDS").unwrap_or(seeds);
    let found = match variable("CANAL_SEED") {
        Some(seed) => run(seed, rules).map_err(|what| (seed, what)),
        None => run_all(seeds, rules),
    };
    match found {
        Ok(seen) => seen,
        Err((seed, what)) => panic!("CANAL_SEED={seed}: {what}"),
    }
}

#[test]
fn commands_exclude_each_other_and_nothing_is_stuck_whatever_goes_wrong() {
    let seen = all_is_well(SEEDS, USUAL);
    println!("{seen:?}");
    if variable("CANAL_SEED").is_none() {
        let Seen { grants, hosts_gone, adoptions, deadlocks, losses, snapshots } = seen;
        let all = [grants, hosts_gone, adoptions, deadlocks, losses, snapshots];
        assert!(all.iter().all(|times| *times > 0), "something never happened: {seen:?}");
    }
}

/// The fault that is found with some rules broken, and the seed that finds it.
fn found(rules: Rulebook) -> (u64, String) {
    let (seed, what) = run_all(5000, rules).expect_err("that a rule is broken was not found");
    println!("seed {seed}: {what:.300}");
    (seed, what)
}

fn is_overbooked(what: &str) -> bool {
    what.contains("both run") || what.contains("are in use")
}

#[test]
fn rule_04_grants_that_are_told_and_taken_after_the_deadline_are_found() {
    let (_, what) =
        found(Rulebook { late_grants: true, focus: &[Fault::StopProcess, Fault::Cut], ..USUAL });
    assert!(is_overbooked(&what), "{what}");
}

#[test]
fn rule_05_hosts_that_are_declared_gone_too_early_are_found() {
    let (_, what) = found(Rulebook { hasty: true, ..USUAL });
    assert!(is_overbooked(&what), "{what}");
}

#[test]
fn rule_07_renewals_that_count_from_their_answer_are_found() {
    let (_, what) =
        found(Rulebook { late_start: true, focus: &[Fault::Stop, Fault::Cut], ..USUAL });
    assert!(is_overbooked(&what), "{what}");
}

#[test]
fn rule_08_joining_while_earlier_commands_live_is_found() {
    let (_, what) = found(Rulebook { no_clearing: true, ..USUAL });
    assert!(is_overbooked(&what), "{what}");
}

#[test]
fn rule_10_waiters_whose_death_is_forgotten_are_found() {
    let (_, what) = found(Rulebook { forget_dead_waiters: true, ..USUAL });
    assert!(what.contains("stuck") || what.contains("left"), "{what}");
}

#[test]
fn rule_09_a_past_that_changes_unnoticed_is_found() {
    let rewrite = Rulebook { rewrite: true, ..USUAL };
    let (seed, _) = found(Rulebook { blind: true, ..rewrite });
    run(seed, rewrite).unwrap();
}

#[test]
fn rule_09_hosts_agree_again_after_the_engine_forgot_what_it_acknowledged() {
    all_is_well(SEEDS / 4, Rulebook { rewrite: true, ..USUAL });
}

/// The engine loses history and nothing else goes wrong: every host reports before the first grant.
const ALL_SPEAK: Rulebook = Rulebook { rewrite: true, focus: &[Fault::Kill], ..USUAL };

#[test]
fn rule_09_grants_before_the_longest_ttl_has_passed_are_found() {
    let (_, what) = found(Rulebook { rewrite: true, impatient: true, ..USUAL });
    assert!(is_overbooked(&what), "{what}");
}

#[test]
fn rule_09_old_grants_that_are_told_after_history_was_lost_are_found() {
    found(Rulebook { rewrite: true, tells_lost: true, ..USUAL });
}

#[test]
fn rule_09_tokens_of_which_hosts_do_not_speak_are_found() {
    let wrong_time = Rulebook { wrong_time: true, ..ALL_SPEAK };
    let (seed, what) = found(Rulebook { silent: true, ..wrong_time });
    assert!(what.contains("is told for"), "{what}");
    run(seed, wrong_time).unwrap();
    all_is_well(SEEDS / 4, wrong_time);
}
