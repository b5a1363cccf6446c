//! Flaws of canal_lock and sleeplocks that only the command line could repeat. The core replays
//! their histories, and those of `locks` (`crates/canal-core/src/tests/admission`).

use crate::world::World;

#[test]
fn a_size_that_is_zero_negative_or_no_number_is_an_error_or_admits_none() {
    let world = World::with_daemon();
    for (size, code) in [
        (&["--per", "2", "--buckets", "0"][..], 75),
        (&["--per", "2", "--buckets", "-1"], 125),
        (&["--per", "0", "--buckets", "1"], 125),
        (&["--per", "-1", "--buckets", "1"], 125),
        (&["--per", "0", "--buckets", "0"], 125),
        (&["--slots", "-1"], 125),
        (&["--slots", "1.5"], 125),
        (&["--slots", "0"], 125),
        (&["--slots", "two"], 125),
    ] {
        let args = [&["run", "-k", "k"], size, &["--", "true"]].concat();
        let ended = world.canal(args).end();
        assert_eq!(ended.code, Some(code), "{size:?}: {ended:?}");
    }
    assert_eq!(world.status().keys.len(), 0);
}

#[test]
fn a_script_that_acquires_what_it_holds_keeps_the_outer_hold() {
    let world = World::with_daemon();
    for slots in ["1", "2"] {
        let script = format!(
            "canal acquire -q --pid $$ -k x={slots} || exit 1
             canal acquire -q --pid $$ -k x={slots} || exit 2
             canal release --pid $$ x || exit 3
             canal status --json"
        );
        let ended = world.sh(&script).end().code(0);
        assert_eq!(ended.json()["keys"][0]["held"], 1, "{slots} slots");
        world.until_idle();
    }
}

#[test]
fn a_process_that_releases_what_it_does_not_hold_gets_an_error_and_changes_nothing() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x=2x1"]);
    let script = "canal release -q --pid $$ x; echo $?";
    assert_eq!(world.sh(script).end().code(0).stdout, "125\n");
    assert_eq!(world.held("x"), 1);
    holder.finish();
}
