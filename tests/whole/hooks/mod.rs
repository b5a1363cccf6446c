//! Hooks: the programs of the configuration that receive events.

mod bounds;
mod events;
mod set_up;

use std::fs;

use serde_json::Value;

use crate::world::World;
use crate::world::executable::executable;
use crate::world::process::wait_until;

/// The script of a program that keeps its events.
const KEEP: &str = "cat >>\"$0.told\"";

/// Creates a program that runs this script, and returns the hook that runs the program. A daemon of
/// root needs a user to run it as.
fn hook(world: &World, name: &str, on: &[&str], more: &str, script: &str) -> String {
    let path = world.path(name);
    executable(&path, &format!("#!/bin/sh\n{script}\n"));
    let is_root = nix::unistd::geteuid().is_root();
    let user = if is_root { "user = \"root\"\n" } else { "" };
    format!("[[hooks]]\non = {on:?}\nrun = [{path:?}, \"a word\"]\n{user}{more}\n")
}

/// A world whose daemon has these hooks.
fn world_with(hooks: impl Fn(&World) -> String) -> World {
    let world = World::new();
    world.configure(&hooks(&world));
    world.status();
    world.on_one_host()
}

/// The events that the program of a hook has kept.
fn told(world: &World, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(world.path(&format!("{name}.told"))).unwrap_or_default();
    let whole = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    whole.collect()
}

/// Waits until the program of a hook has received `count` events.
#[track_caller]
fn until_told(world: &World, name: &str, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    wait_until("the hook is told", || {
        found = told(world, name);
        found.len() >= count
    });
    assert_eq!(found.len(), count, "{found:#?}");
    found
}

/// Lets a lease expire: the quickest way to an event.
#[track_caller]
fn lose_a_lease(world: &World, key: &str) {
    let ended = world.canal(["acquire", "--ttl", "1", key]).end();
    // On a busy machine its TTL can pass before its client has confirmed it. It is lost in either
    // case.
    if !ended.stderr.contains("took the lock back before the confirmation") {
        ended.code(0);
    }
}

/// The pids in a file that a program has written.
fn pids(world: &World, name: &str) -> Vec<i32> {
    let text = fs::read_to_string(world.path(name)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}
