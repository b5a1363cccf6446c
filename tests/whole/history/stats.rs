//! `canal stats`: waits and holds are counted as they were.

use serde_json::json;

use crate::history::until_recorded;
use crate::world::World;

#[test]
fn waits_and_holds_are_counted_by_user_and_command() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "s"]);
    world.canal(["run", "-n", "-k", "s", "--", "true"]).end().code(75);
    let waiter = world.waiter("s", &[], &["true"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    holder.finish();
    waiter.end().code(0);
    world.canal(["run", "-k", "s/below", "--", "true"]).end().code(0);
    world.canal(["run", "-k", "other", "--", "true"]).end().code(0);
    until_recorded(&world, &[], 5);
    let found = world.canal(["stats", "s", "--json"]).end().code(0).json();
    let all = &found["all"];
    assert_eq!((&all["count"], &all["refused"]), (&json!(4), &json!(1)), "{found}");
    // Of three waits one was long, and of three holds the other one.
    for (lengths, name) in [(&all["waits"], "waits"), (&all["holds"], "holds")] {
        let length = |of: &str| lengths[of].as_u64().unwrap();
        assert!(length("max_ms") >= 290, "{name}: {found}");
        assert!(length("median_ms") <= length("p90_ms"), "{name}: {found}");
        assert!(length("p99_ms") <= length("max_ms"), "{name}: {found}");
    }
    let commands = found["commands"].as_array().unwrap();
    let counted = |command: &str| {
        let of = commands.iter().find(|of| of["command"] == command);
        of.unwrap_or_else(|| panic!("{found}"))["count"].clone()
    };
    assert_eq!((counted("cat"), counted("true")), (json!(1), json!(3)));
    assert_eq!(found["users"].as_array().unwrap().len(), 1);
    let shown = world.canal(["stats", "s"]).end().code(0).stdout;
    assert!(shown.starts_with("s  3 grants, 1 never granted\n"), "{shown}");
    assert!(shown.lines().any(|line| line.ends_with("  everything")), "{shown}");
    let none = world.canal(["stats", "nowhere"]).end().code(0).stdout;
    assert_eq!(none, "nowhere  0 grants, 0 never granted\n");
}
