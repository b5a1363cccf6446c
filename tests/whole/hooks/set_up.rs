//! Hooks in the configuration: which are refused, what `canal config` and `canal doctor` show, and
//! what a reload changes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::whole::hooks::{KEEP, hook, lose_a_lease, told, until_told, world_with};
use crate::world::World;
use crate::world::process::root_or_skip;

#[test]
fn a_reload_changes_hooks_while_the_daemon_runs() {
    let world = world_with(|_| String::new());
    let first = hook(&world, "first", &["lost-lease"], "", KEEP);
    let second = hook(&world, "second", &["lost-lease"], "", KEEP);
    let reload = |config: &str| {
        world.configure(config);
        world.canal(["daemon", "--reload"]).end().code(0).stderr
    };
    let said = reload(&first);
    assert!(said.contains("hooks[0]"), "{said}");
    lose_a_lease(&world, "a");
    until_told(&world, "first", 1);
    reload(&format!("{second}{first}"));
    lose_a_lease(&world, "b");
    until_told(&world, "first", 2);
    until_told(&world, "second", 1);
    reload(&second);
    lose_a_lease(&world, "c");
    until_told(&world, "second", 2);
    assert_eq!(told(&world, "first").len(), 2, "it is no hook any more");
    // A faulty edit changes nothing.
    world.configure("[[hooks]]\non = [\"lost-lease\"]\nrun = [\"tell\"]\n");
    let refused = world.canal(["daemon", "--reload"]).end().code(125).stderr;
    assert!(refused.contains("`tell` is not an absolute path"), "{refused}");
    lose_a_lease(&world, "d");
    until_told(&world, "second", 3);
}

#[test]
fn a_daemon_of_root_needs_to_know_as_whom() {
    if !root_or_skip("a daemon of root") {
        return;
    }
    let world = World::new();
    let text = hook(&world, "tell", &["lost-lease"], "", KEEP);
    world.configure(&text.replace("user = \"root\"\n", ""));
    let refused = world.canal(["daemon"]).end().code(125).stderr;
    let said = "a hook of root's daemon must name a user: `user = \"NAME\"`";
    assert!(refused.contains(said) && refused.contains(", line "), "{refused}");
}

#[test]
fn doctor_and_config_show_hooks_and_what_keeps_them_from_running() {
    let world = world_with(|world| {
        let fine = hook(world, "fine", &["deadlock"], "timeout = \"9s\"", KEEP);
        fine + &hook(world, "open", &["deadlock"], "", KEEP)
    });
    let shown = world.canal(["config"]).end().code(0).stdout;
    assert!(shown.contains("hooks[0]") && shown.contains("timeout = \"9s\""), "{shown}");
    let hooks = || -> Vec<(String, String)> {
        let report = world.canal(["doctor", "--json"]).end().json();
        let findings = report["findings"].as_array().unwrap().iter();
        let hooks = findings.filter(|it| it["about"] == "hook");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        hooks.map(|it| (text(&it["level"]), text(&it["message"]))).collect()
    };
    let levels = || hooks().into_iter().map(|(level, _)| level).collect::<Vec<_>>();
    assert_eq!(levels(), ["fine", "fine"]);
    fs::set_permissions(world.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let found = hooks();
    assert_eq!((found[0].0.as_str(), found[1].0.as_str()), ("fine", "problem"));
    assert!(found[1].1.starts_with("hooks[1]: "), "{found:?}");
    assert!(found[1].1.contains("is writable by other users (mode 0777)"), "{found:?}");
    world.canal(["doctor"]).end().code(1);
    // The daemon does not run it either.
    fs::remove_file(world.path("fine")).unwrap();
    assert_eq!(levels(), ["problem", "problem"]);
}
