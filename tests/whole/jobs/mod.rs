//! Background jobs: they are queued in order, survive the session and the daemon, and leave their
//! output and exit status.

mod ends;
mod orders;
mod room;
mod sessions;
mod submit;

use serde_json::Value;

use crate::world::World;

/// Submits a job with these options and words, and returns its number.
#[track_caller]
fn submitted(world: &World, args: &[&str]) -> String {
    let report = report(world, args);
    report["job"].as_u64().unwrap().to_string()
}

/// What `canal submit --json` reports.
#[track_caller]
fn report(world: &World, args: &[&str]) -> Value {
    let all = [&["submit", "--json"], args].concat();
    world.canal(all).end().code(0).json()
}

/// The process that owns the only hold of a key.
#[track_caller]
fn holder(world: &World, key: &str) -> i32 {
    world.until_held(key, 1);
    world.key(key).holders[0].pid.cast_signed()
}

/// The supervisor of a job's process.
fn supervisor(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    after_name.split_whitespace().nth(1).unwrap().parse().unwrap()
}
