//! The events that a hook receives, and their fields.

use std::fs;

use serde_json::{Value, json};

use crate::script::Script;
use crate::whole::hooks::{KEEP, hook, lose_a_lease, told, until_told, world_with};
use crate::world::World;

fn event<'a>(told: &'a [Value], event: &str) -> &'a Value {
    told.iter().find(|one| one["event"] == event).unwrap_or_else(|| panic!("{told:#?}"))
}

fn pid(one: &Value) -> i32 {
    one["pid"].as_i64().unwrap().try_into().unwrap()
}

/// A world with a hook for waits and holds of a second.
fn world_with_long_ones() -> World {
    let on = ["long-wait", "long-hold"];
    world_with(|world| hook(world, "tell", &on, "after = \"1s\"", KEEP))
}

#[test]
fn a_long_wait_and_a_long_hold_are_told_once_with_who_holds() {
    let world = world_with_long_ones();
    let holder = world.holder(&["-k", "a"]);
    let waiter = world.waiter("a", &["--note", "run 7"], &["true"]);
    let found = until_told(&world, "tell", 2);
    let (wait, hold) = (event(&found, "long-wait"), event(&found, "long-hold"));
    assert_eq!((pid(hold), pid(wait)), (holder.pid(), waiter.pid()));
    assert!(hold["held_ms"].as_u64().unwrap() >= 1000, "{hold}");
    assert_eq!(hold["items"], json!([{ "key": "a", "mode": "counted", "count": 1 }]));
    assert_eq!(hold["token"].as_u64().unwrap(), world.key("a").holders[0].token);
    assert_eq!(hold["command"], "cat");
    assert_eq!(hold["uid"], nix::unistd::geteuid().as_raw());
    assert!(wait["waited_ms"].as_u64().unwrap() >= 1000, "{wait}");
    assert_eq!((&wait["note"], &wait["held_ms"]), (&json!("run 7"), &Value::Null));
    assert_eq!(wait["holders"].as_array().unwrap().len(), 1);
    assert_eq!(pid(&wait["holders"][0]), holder.pid());
    assert_eq!(wait["holders"][0]["command"], "cat");
    assert!(!wait["reason"].as_str().unwrap().is_empty());
    assert_eq!(wait["socket"].as_str(), world.socket().to_str());
    assert_eq!(wait["dropped"], 0);
    // While another hold becomes long, the first ones last long enough for a second event.
    let other = world.holder(&["-k", "b"]);
    let found = until_told(&world, "tell", 3);
    assert_eq!(pid(&found[2]), other.pid());
    other.finish();
    // A request that waits for long and then holds for long causes two events.
    waiter.kill();
    holder.finish();
}

#[test]
fn what_was_told_is_not_told_again_by_the_next_daemon() {
    let world = world_with_long_ones();
    let holder = world.holder(&["-k", "a"]);
    until_told(&world, "tell", 1);
    world.kill_daemon();
    world.daemons_return();
    let other = world.holder(&["-k", "b"]);
    let found = until_told(&world, "tell", 2);
    assert_eq!((pid(&found[0]), pid(&found[1])), (holder.pid(), other.pid()));
    holder.finish();
    other.finish();
}

#[test]
fn a_deadlock_is_told_with_its_ring() {
    let world = world_with(|world| hook(world, "tell", &["deadlock"], "", KEEP));
    let mut first = Script::start(&world, "first", "-k a", "-k b");
    let mut second = Script::start(&world, "second", "-k b", "-k a");
    first.go_and_wait(&world);
    second.go();
    second.proc.end().code(75);
    first.proc.end().code(0);
    let found = until_told(&world, "tell", 1);
    let cycle = found[0]["cycle"].as_array().unwrap();
    let keys: Vec<_> = cycle.iter().map(|step| step["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["a", "b"]);
    assert_eq!(cycle[0]["session"], found[0]["session"]);
    assert!(cycle.iter().all(|step| pid(step) > 0), "{cycle:?}");
}

#[test]
fn a_lost_lease_and_a_forced_release_are_told_also_without_a_history() {
    let on = ["lost-lease", "forced-release"];
    let world =
        world_with(|world| format!("[history]\nmax = 0\n\n{}", hook(world, "tell", &on, "", KEEP)));
    lose_a_lease(&world, "lease");
    let lost = until_told(&world, "tell", 1).remove(0);
    assert_eq!((&lost["event"], &lost["how"]), (&json!("lost-lease"), &json!("expired")));
    assert_eq!((pid(&lost), &lost["items"][0]["key"]), (0, &json!("lease")));
    let holder = world.holder(&["-k", "b"]);
    let token = world.key("b").holders[0].token.to_string();
    world.canal(["release", "--force", "--token", &token]).end().code(0);
    let forced = until_told(&world, "tell", 2).remove(1);
    assert_eq!((&forced["event"], pid(&forced)), (&json!("forced-release"), holder.pid()));
    assert_eq!(forced["by"]["uid"], nix::unistd::geteuid().as_raw());
    assert_eq!(forced["token"].to_string(), token);
    // A normal end causes no event.
    world.canal(["run", "-k", "b", "--", "true"]).end().code(0);
    lose_a_lease(&world, "other");
    until_told(&world, "tell", 3);
    holder.finish();
}

#[test]
fn a_hook_is_told_of_its_keys_only() {
    let world = world_with(|world| {
        let some = hook(world, "some", &["lost-lease"], "keys = \"ci\"", KEEP);
        some + &hook(world, "all", &["lost-lease"], "", KEEP)
    });
    for key in ["ci/db", "cix", "ci"] {
        lose_a_lease(&world, key);
    }
    until_told(&world, "all", 3);
    let found = until_told(&world, "some", 2);
    let keys: Vec<_> = found.iter().map(|one| one["items"][0]["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["ci/db", "ci"]);
}

#[test]
fn a_program_finds_a_clean_environment_and_users_words_on_its_input_only() {
    let script = "tr '\\0' '\\n' </proc/$$/environ >\"$0.env\"\n\
                  tr '\\0' '\\n' </proc/$$/cmdline >\"$0.args\"\n\
                  { pwd; umask; readlink /proc/$$/fd/1 /proc/$$/fd/2; ls /proc/$$/fd; } \
                  >\"$0.rest\"\ncat >>\"$0.told\"";
    let world = world_with(|world| hook(world, "tell", &["lost-lease"], "", script));
    lose_a_lease(&world, "a'$(touch x)`");
    let found = until_told(&world, "tell", 1);
    assert_eq!(found[0]["items"][0]["key"], "a'$(touch x)`");
    let read = |what: &str| fs::read_to_string(world.path(&format!("tell.{what}"))).unwrap();
    let mut names: Vec<String> =
        read("env").lines().map(|line| line.split('=').next().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["HOME", "LANG", "PATH", "USER"]);
    let program = world.path("tell").display().to_string();
    assert_eq!(read("args"), format!("/bin/sh\n{program}\na word\n"));
    let rest = read("rest");
    let lines: Vec<&str> = rest.lines().collect();
    assert_eq!(lines[..2], ["/", "0022"]);
    assert_eq!(lines[2], format!("{program}.rest"), "the script sends it there");
    assert_eq!(lines[3], "/dev/null");
    // Standard input, output and error, the script itself, and a copy that the shell makes.
    assert!(lines[4..].len() <= 6, "{rest}");
    assert_eq!(told(&world, "tell").len(), 1);
}
