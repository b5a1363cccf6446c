//! Estimates of how much longer a request will usually wait, where enough runs are known.

use serde_json::Value;

use crate::whole::history::until_recorded;
use crate::world::World;
use crate::world::process::wait_until;

/// The estimate that the status shows for the only waiter.
fn estimate(world: &World, key: &str) -> Option<Value> {
    let found = world.canal(["status", key, "--json"]).end().code(0).json();
    let waiter = &found["keys"][0]["waiters"][0];
    assert_eq!(waiter["position"], 1, "{found}");
    waiter.get("estimate").cloned()
}

#[test]
fn a_waiter_is_told_how_long_it_usually_takes_by_five_records_and_not_by_four() {
    let world = World::with_daemon().on_one_host();
    // The holder runs the same command as the earlier ones.
    let command = ["run", "-k", "e", "--", "cat"];
    for _ in 0..3 {
        world.canal(command).end().code(0);
    }
    until_recorded(&world, &["e"], 3);
    let holder = world.holder(&["-k", "e"]);
    let waiter = world.waiter("e", &[], &["true"]);
    assert_eq!(estimate(&world, "e"), None);
    holder.finish();
    waiter.end().code(0);
    until_recorded(&world, &["e"], 5);
    // The key has five runs, four of them by cat.
    let holder = world.holder(&["-k", "e"]);
    let waiter = world.waiter("e", &[], &["true"]);
    wait_until("there is an estimate", || estimate(&world, "e").is_some());
    let found = estimate(&world, "e").unwrap();
    let ms = |of: &str| found[of].as_u64().unwrap();
    assert!(ms("low_ms") <= ms("median_ms") && ms("median_ms") <= ms("high_ms"), "{found}");
    let shown = world.canal(["status", "e"]).end().code(0).stdout;
    assert!(shown.contains("; usually "), "{shown}");
    holder.finish();
    waiter.end().code(0);
    until_recorded(&world, &["e"], 7);
    // The next daemon reads the records of this one.
    world.canal(["daemon", "--stop"]).end().code(0);
    let holder = world.holder(&["-k", "e"]);
    let waiter = world.waiter("e", &[], &["true"]);
    wait_until("there is an estimate", || estimate(&world, "e").is_some());
    holder.finish();
    waiter.end().code(0);
}
