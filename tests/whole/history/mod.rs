//! Ended requests in `canal history`, and what remains of them after a daemon was killed or a file
//! damaged.

mod endings;
mod estimates;
mod files;
mod stats;
mod trace;

use serde_json::Value;

use crate::world::World;
use crate::world::process::wait_until;

/// The records of `canal history --json ARGS`, oldest first.
#[track_caller]
fn records(world: &World, args: &[&str]) -> Vec<Value> {
    let all = [&["history", "--json"], args].concat();
    let found = world.canal(all).end().code(0).json();
    found["records"].as_array().unwrap().clone()
}

/// Waits until `args` select `count` records, and returns them.
#[track_caller]
fn until_recorded(world: &World, args: &[&str], count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    wait_until("what ended is recorded", || {
        found = records(world, args);
        found.len() >= count
    });
    assert_eq!(found.len(), count, "{found:?}");
    found
}
