//! Simulated machines around the real daemon, driven by a seed.
//!
//! The daemon's own code runs: its turn, its connections, its journal. Under it is a simulated
//! kernel ([`crate::sys::simulated`]) with clocks, processes and peers. Clients are simulated: they
//! speak the protocol as `canal run`, `canal acquire`, `canal renew` and `canal release` do.
//! Everything runs in one thread, in steps. Daemons are killed, also in the middle of a turn, and
//! stopped; processes are killed and stopped; machines lose their power.
//!
//! Each step checks that what commands were told that they hold fits, that tokens grow, that every
//! call is answered in time, and that nothing is held for a process that is gone. At the end,
//! nothing may be left or stuck.
//!
//! `CANAL_SEED=n` runs that seed alone, `CANAL_SEEDS=n` runs n seeds.

mod claims;
mod conversation;
mod faults;
mod host;
mod machine;
mod plan;
mod program;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use world::{Seen, World};

/// How many seeds every test run tries.
const SEEDS: u64 = 1_000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(seed: u64) -> Result<Seen, String> {
    let run = AssertUnwindSafe(|| World::new(seed).run());
    catch_unwind(run).unwrap_or_else(|_| Err("it panicked".to_owned()))
}

/// Runs seeds on all processors. Returns the first that fails, or statistics of all.
fn run_all(seeds: u64) -> Result<Seen, (u64, String)> {
    let next = AtomicU64::new(0);
    let one = || {
        let mut all = Seen::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return Ok(all);
            }
            match run(seed) {
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
        self.daemons += other.daemons;
        for (why, times) in other.refused {
            *self.refused.entry(why).or_default() += times;
        }
    }
}

#[test]
fn the_daemon_keeps_its_promises_whatever_goes_wrong() {
    let found = match variable("CANAL_SEED") {
        Some(seed) => run(seed).map_err(|what| (seed, what)),
        None => run_all(variable("CANAL_SEEDS").unwrap_or(SEEDS)),
    };
    match found {
        Ok(seen) => println!("{seen:?}"),
        Err((seed, what)) => panic!("CANAL_SEED={seed}: {what}"),
    }
}

#[test]
fn a_seed_decides_everything() {
    assert_eq!(run(7), run(7));
}
