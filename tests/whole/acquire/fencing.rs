//! Runs the examples of `docs/fencing.md` as they are on the page, with tokens of real leases.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::backend::over_engines;
use crate::lease::Lease;
use crate::psql::Database;
use crate::world::World;
use crate::world::executable::executable;
use crate::world::process::{Ended, wait_until};

over_engines! {
    "tokens are entries of the log":
        each_command_of_a_run_has_a_larger_token;
}

/// Returns the code block of the page that begins with `begins`.
fn block(language: &str, begins: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/fencing.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```").skip(1).step_by(2);
    let mut code = blocks.filter_map(|block| block.strip_prefix(&format!("{language}\n")));
    let found = code.find(|code| code.starts_with(begins));
    found.unwrap_or_else(|| panic!("no {language} that begins with {begins:?}")).to_owned()
}

/// Writes the program of the page into `work`.
fn fenced(world: &World) {
    executable(world.path("work/fenced"), &block("sh", "#!/bin/sh\n# fenced "));
}

/// Writes a word into the resource, through the fence.
fn write(world: &World, token: u64, word: &str) -> Ended {
    let write = format!("echo {word} >>site");
    world.program("./fenced", [".", &token.to_string(), "sh", "-c", &write]).end()
}

/// A lease that expired without its owner's notice, and the next lease of the same key.
fn lost_and_next(world: &World) -> (Lease, Lease) {
    let lost = Lease::take(world, "1s", &["-k", "site"]);
    let next = Lease::ask(world, "10m", &["-k", "site"]);
    let next = Lease::of(&next.end().code(0));
    assert!(!lost.holds(world) && next.holds(world));
    (lost, next)
}

#[test]
fn in_shell_a_lost_lease_cannot_change_the_resource() {
    let world = World::with_daemon();
    fenced(&world);
    let (lost, next) = lost_and_next(&world);
    // The lost lease may write until a later lease has written.
    write(&world, lost.token, "one").code(0);
    write(&world, next.token, "two").code(0);
    write(&world, next.token, "three").code(0);
    let refused = write(&world, lost.token, "four").code(122);
    let words = format!("fenced: token {} is stale: {} came later\n", lost.token, next.token);
    assert_eq!(refused.stderr, words);
    assert_eq!(world.read("site"), "one\ntwo\nthree\n");
    for wrong in ["", "12x", "-1"] {
        world.program("./fenced", [".", wrong, "true"]).end().code(125);
    }
}

#[test]
fn in_shell_a_later_holder_waits_for_a_change_in_progress() {
    let world = World::with_daemon();
    fenced(&world);
    let (lost, next) = lost_and_next(&world);
    let slow = "echo begins >>site; read line; echo ends >>site";
    let args = [".", &lost.token.to_string(), "sh", "-c", slow];
    let slow = world.program("./fenced", args).stdin(Stdio::piped()).spawn();
    wait_until("it changes the resource", || world.read("site") == "begins\n");
    let later = [".", &next.token.to_string(), "sh", "-c", "echo later >>site"];
    let later = world.program("./fenced", later).spawn();
    // No other program can take the fence between the check and the change.
    let mut later = later;
    wait_until("it waits for the fence", || {
        let held = world.program("flock", ["-n", ".fence.lock", "true"]).end();
        assert!(!later.has_ended());
        held.code == Some(1)
    });
    slow.finish().code(0);
    later.end().code(0);
    assert_eq!(world.read("site"), "begins\nends\nlater\n");
    write(&world, lost.token, "never").code(122);
}

#[test]
fn each_command_of_a_run_has_a_larger_token() {
    let world = World::with_daemon();
    fenced(&world);
    for n in 0..5 {
        let script = format!("./fenced . $CANAL_TOKEN sh -c 'echo {n} >>site'");
        world.canal(["run", "-k", "site", "-c", &script]).end().code(0);
        if n == 2 {
            world.kill_daemon();
        }
    }
    assert_eq!(world.read("site"), "0\n1\n2\n3\n4\n");
}

#[test]
fn in_sql_a_lost_lease_cannot_change_the_resource() {
    let world = World::with_daemon();
    let Some(database) = Database::new(&world) else { return };
    database.sql("CREATE TABLE accounts (name text PRIMARY KEY, balance bigint)").code(0);
    database.sql("INSERT INTO accounts VALUES ('ann', 100)").code(0);
    database.sql(&block("sql", "CREATE TABLE fences")).code(0);
    let change = block("sql", "BEGIN;");
    let change = |token: u64| database.with(&change, &[("token", token)]);
    let balance = || database.sql("SELECT balance FROM accounts").code(0).stdout;
    let (lost, next) = lost_and_next(&world);
    change(lost.token).code(0);
    change(next.token).code(0);
    change(next.token).code(0);
    let refused = change(lost.token);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.stderr.contains(&format!("token {} is stale", lost.token)), "{refused:?}");
    assert_eq!(balance(), "70\n");
    // The function refuses a resource that has no row.
    let unknown = database.sql("SELECT fence('nothing', 1)");
    assert!(unknown.stderr.contains("is stale"), "{unknown:?}");
}

#[test]
fn in_sql_a_concurrent_older_token_waits_and_is_refused() {
    let world = World::with_daemon();
    let Some(database) = Database::new(&world) else { return };
    database.sql(&block("sql", "CREATE TABLE fences")).code(0);
    database.sql("CREATE TABLE log (token bigint)").code(0);
    let (lost, next) = lost_and_next(&world);
    let mut slow = database.interactive();
    slow.say(&format!("BEGIN; SELECT fence('accounts', {}); SELECT 'fenced';", next.token));
    wait_until("the later one has the fence", || slow.said().contains("fenced"));
    let early = format!("BEGIN; SELECT fence('accounts', {}); COMMIT;", lost.token);
    let early = database.spawn(&early);
    wait_until("the earlier one waits for the row", || {
        let waits = "SELECT count(*) FROM pg_stat_activity
            WHERE wait_event_type = 'Lock' AND datname = current_database()";
        database.sql(waits).stdout == "1\n"
    });
    slow.say("COMMIT;");
    slow.end();
    let refused = early.end();
    assert!(refused.stderr.contains("is stale"), "{refused:?}");
}
