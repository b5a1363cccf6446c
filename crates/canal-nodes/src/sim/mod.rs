//! Runs coordinators and nodes from a seed: the real coordinator, and in each node the real table
//! with a thin model of the daemon around it.
//!
//! Time jumps from event to event, and clocks run at different rates. These faults happen:
//!
//! - Messages arrive in order on each connection, but late between two connections. They are lost
//!   with their connection, or arrive long after its end.
//! - Connections are cut in one direction or both. Coordinators are stopped, and killed between two
//!   effects. Daemons and machines restart, with or without their state.
//! - Another party renews leases with its own TTLs.
//!
//! Each step checks that no two commands that exclude each other run, that at least as many nodes
//! keep the lock of a command as it requires, that no node knows lists that need not meet, that no
//! request waits behind itself, and that no unconfirmed part outlives its client. Each start checks
//! that tokens grow. In the end, after the last fault, every request must finish and leave nothing
//! behind.
//!
//! `CANAL_SEED=n` runs only that seed, `CANAL_SEEDS=n` runs n seeds, `CANAL_SEEDS=a..b` those from
//! a to before b.

mod check;
mod clock;
mod draw;
mod host;
mod network;
mod node;
mod rule;
mod starts;
mod table;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use draw::FaultProfile;
pub(crate) use rule::{Rule, break_rule, is_broken};
use world::{Seen, World};

/// How many seeds each test run tries.
const SEEDS: u64 = 2_000;

/// How many seeds may pass before one finds a broken rule.
const SEEDS_TO_FIND: u64 = 2_000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seeds to try: those of `CANAL_SEEDS`, or the usual number.
fn seeds(usual: u64) -> Range<u64> {
    let Ok(stated) = std::env::var("CANAL_SEEDS") else { return 0..usual };
    let parse = |text: &str| text.parse().expect("CANAL_SEEDS is `COUNT` or `FIRST..END`");
    match stated.split_once("..") {
        Some((first, end)) => parse(first)..parse(end),
        None => 0..parse(&stated),
    }
}

fn run(seed: u64, broken: Option<Rule>) -> Result<Seen, String> {
    break_rule(broken);
    let run = AssertUnwindSafe(|| World::new(seed).run());
    let ran = catch_unwind(run).unwrap_or_else(|_| Err("it panicked".to_owned()));
    break_rule(None);
    ran
}

/// Runs seeds on all processors. Returns the first that fails, or the statistics of all.
fn run_all(seeds: Range<u64>, broken: Option<Rule>) -> Result<Seen, (u64, String)> {
    let next = AtomicU64::new(seeds.start);
    let one = || {
        let mut all = Seen::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(all);
            }
            match run(seed, broken) {
                Ok(seen) => all.add(&seen),
                Err(what) => {
                    next.store(seeds.end, Ordering::Relaxed);
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
            all.add(&thread.join().unwrap()?);
        }
        Ok(all)
    })
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.starts += other.starts;
        self.takeovers += other.takeovers;
        self.spares += other.spares;
        self.blank += other.blank;
        self.ends.given_back += other.ends.given_back;
        self.ends.refused += other.ends.refused;
        self.ends.failed += other.ends.failed;
        self.ends.lost += other.ends.lost;
    }
}

#[test]
fn coordinators_over_nodes_keep_their_promises_whatever_goes_wrong() {
    let found = match variable("CANAL_SEED") {
        Some(seed) => run(seed, None).map_err(|what| (seed, what)),
        None => run_all(seeds(SEEDS), None),
    };
    match found {
        Ok(seen) => {
            println!("{seen:?}");
            let Seen { starts, ends, takeovers, spares, blank } = seen;
            let all = [starts, ends.given_back, ends.refused, ends.failed, ends.lost];
            let all = all.into_iter().chain([takeovers, spares, blank]);
            let is_stated = |name: &&str| std::env::var_os(name).is_some();
            let is_alone = ["CANAL_SEED", "CANAL_SEEDS"].iter().any(is_stated);
            assert!(is_alone || all.into_iter().all(|times| times > 0), "something never happened");
        }
        Err((seed, what)) => panic!("CANAL_SEED={seed}: {what}"),
    }
}

#[test]
fn a_seed_decides_everything_over_nodes() {
    for seed in 0..5 {
        assert_eq!(run(seed, None), run(seed, None));
    }
}

/// Two cron jobs begin in the same second: the first node decides.
#[test]
fn of_two_requests_that_do_not_wait_exactly_one_is_granted() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let profile = FaultProfile::draw_two_crons(&mut rng);
        let seen = World::with(rng, profile).run().unwrap();
        assert_eq!((seen.starts, seen.ends.refused), (1, 1), "seed {seed}: {seen:?}");
    }
}

/// Runs a world of overlapping lists: the first request that runs excludes those whose lists need
/// not meet its own.
fn lists(seed: u64) -> Result<Seen, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let profile = FaultProfile::draw_lists(&mut rng);
    World::with(rng, profile).run()
}

#[test]
fn majorities_with_a_node_in_common_do_not_both_run() {
    let mut refused = 0;
    for seed in 0..500 {
        let seen = lists(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        refused += seen.ends.failed;
    }
    assert!(refused > 0, "no two lists were apart");
}

#[test]
fn rule_4_a_list_that_is_not_announced_is_found() {
    break_rule(Some(Rule::AnnouncesLists));
    let found = (0..SEEDS_TO_FIND).find_map(|seed| lists(seed).err());
    break_rule(None);
    let what = found.expect("it was not found");
    assert!(what.contains("run over lists that need not meet"), "{what}");
}

/// The failure that a broken rule causes.
fn found(broken: Rule) -> String {
    let (seed, what) = run_all(0..SEEDS_TO_FIND, Some(broken)).expect_err("it was not found");
    println!("{broken:?} is found by seed {seed}: {what:.300}");
    what
}

const OVERLAP: &str = "run at once";
const NOT_KEPT: &str = "is kept by";

fn assert_unsafe(broken: Rule) {
    let what = found(broken);
    assert!(what.contains(OVERLAP) || what.contains(NOT_KEPT), "{what}");
}

#[test]
fn rule_1_a_blank_node_that_grants_at_once_is_found() {
    let what = found(Rule::BlankNodesWait);
    assert!(what.contains(OVERLAP), "{what}");
}

#[test]
fn rule_2_a_lease_that_counts_from_its_answer_is_found() {
    assert_unsafe(Rule::CountsFromSending);
}

#[test]
fn rule_2_a_deadline_by_too_few_leases_is_found() {
    assert_unsafe(Rule::CountsEnough);
}

#[test]
fn rule_4_lists_that_need_not_meet_are_found() {
    let what = found(Rule::ListsMeet);
    assert!(what.contains("need not meet") || what.contains(OVERLAP), "{what}");
}

#[test]
fn rule_5_a_start_before_the_confirmation_is_found() {
    assert_unsafe(Rule::StartsWhenConfirmed);
}

#[test]
fn rule_5_a_confirmation_of_what_is_gone_is_found() {
    assert_unsafe(Rule::GoneIsNotConfirmed);
}

#[test]
fn rule_5_a_token_that_does_not_grow_is_found() {
    let what = found(Rule::TokensGrow);
    assert!(what.contains("starts with token"), "{what}");
}

#[test]
fn rule_6_asking_all_at_once_is_found() {
    let what = found(Rule::AsksInOrder);
    assert!(what.contains("stuck"), "{what}");
}

#[test]
fn rule_6_a_request_that_keeps_what_it_cannot_use_is_found() {
    let what = found(Rule::GivesBackBelowNeed);
    assert!(what.contains("stuck"), "{what}");
}

#[test]
fn a_request_that_comes_back_under_another_name_is_found() {
    let what = found(Rule::ComesBackUnderItsName);
    assert!(what.contains("behind its own older request"), "{what}");
}

#[test]
fn a_ttl_that_another_party_lowers_is_found() {
    assert_unsafe(Rule::TtlOnlyGrows);
}

#[test]
fn a_frozen_client_that_keeps_its_unconfirmed_parts_is_found() {
    let what = found(Rule::SilentPartsEnd);
    assert!(what.contains("outlives its client"), "{what}");
}

#[test]
fn a_time_to_wait_that_begins_with_each_coordinator_is_found() {
    let what = found(Rule::WaitsOnce);
    assert!(what.contains("after its time to wait"), "{what}");
}

#[test]
fn rule_8_a_collecting_grant_that_outlives_its_connection_is_found() {
    let what = found(Rule::CollectingEnds);
    assert!(what.contains("outlives its client"), "{what}");
}
