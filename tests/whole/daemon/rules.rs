//! A newer daemon takes over a journal that was written under older rules, and changes no decision
//! in it.

use crate::world::process::wait_until;
use crate::world::record::{Events, recorded};
use crate::world::{World, journal_only};

#[test]
fn a_daemon_with_newer_rules_keeps_earlier_decisions() {
    if journal_only("hosts with other rules than the log's refuse to join it") {
        return;
    }
    let world = World::new();
    let first = world.daemon(|cmd| cmd);
    let holder = world.holder(&["-k", "x"]);
    // The next daemon, whichever client starts it, has other rules: the newest waiter goes first.
    let waiter = |name: &str| {
        let body = recorded("cat go >/dev/null");
        let args = ["run", "-k", "x", "--", "sh", "-c", &body, "sh", name];
        let before = world.key("x").waiting;
        let one = world.canal(args).env("CANAL_RULES", "newest-first").spawn();
        world.until_waiting("x", before + 1);
        one
    };
    world.program("mkfifo", ["go"]).end().code(0);
    let (a, b) = (waiter("a"), waiter("b"));
    // The current rules decide this: `a` goes first.
    holder.finish();
    wait_until("the first waiter runs", || Events::of(&world).started() == ["a"]);
    let before = world.key("x");
    let c = waiter("c");
    first.kill();
    wait_until("a daemon with other rules has all of them", || {
        world.look().is_some_and(|s| s.keys.iter().any(|k| k.waiting == 2))
    });
    let after = world.key("x");
    assert_eq!(after.holders, before.holders, "the grant is the one it was");
    // From here on the new rules decide.
    let go = world.path("work/go");
    std::fs::write(&go, "").unwrap();
    a.end().code(0);
    wait_until("another one runs", || Events::of(&world).started().len() == 2);
    assert_eq!(Events::of(&world).started(), ["a", "c"]);
    std::fs::write(&go, "").unwrap();
    c.end().code(0);
    wait_until("the last one runs", || Events::of(&world).started().len() == 3);
    std::fs::write(&go, "").unwrap();
    b.end().code(0);
    assert_eq!(Events::of(&world).most_at_once(), 1);
    world.until_idle();
}
