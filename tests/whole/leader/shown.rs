//! The output of a single `canal leader`, and its exit codes.

use serde_json::Value;

use crate::lease::Lease;
use crate::script;
use crate::world::World;

#[test]
fn exit_codes_tell_whether_there_is_a_leader() {
    let world = World::with_daemon();
    let none = world.canal(["leader", "x"]).end().code(75);
    assert_eq!(none.stdout, "");
    assert_eq!(none.stderr, "canal: `x` has no leader: no one holds it\n");
    assert_eq!(world.canal(["leader", "-q", "x"]).end().code(75).stderr, "");
    let none = world.canal(["leader", "-q", "--json", "x"]).end().code(75).json();
    assert_eq!(
        (&none["key"], &none["leader"], &none["stale"]),
        (&"x".into(), &Value::Null, &false.into())
    );

    let leader = world.holder(&["-k", "x", "--note", "http://web2:8080"]);
    let candidate = world.waiter("x", &["--note", "http://web3:8080"], &["true"]);
    let shown = world.canal(["leader", "x"]).end().code(0);
    assert_eq!(shown.stderr, "");
    let (first, second) = shown.stdout.split_once('\n').unwrap();
    assert!(first.starts_with(&format!("leader of x: pid {} `cat` (", leader.pid())), "{first}");
    assert!(first.ends_with(", note: http://web2:8080"), "{first}");
    let token = world.key("x").holders[0].token;
    assert!(second.starts_with("  since ") && second.ends_with(&format!(", token {token}\n")));
    let shown = world.canal(["leader", "--json", "x"]).end().code(0).json();
    let told = &shown["leader"];
    assert_eq!((&told["note"], &told["token"]), (&"http://web2:8080".into(), &token.into()));
    assert_eq!((&told["pid"], &told["mode"]), (&leader.pid().into(), &"counted".into()));
    assert!(told["since"].as_str().unwrap().ends_with('Z'), "{shown}");
    leader.finish();
    candidate.end().code(0);
    world.canal(["leader", "-q", "x"]).end().code(75);
}

#[test]
fn the_writer_leads_and_what_is_held_above_or_below_is_no_leader() {
    let world = World::with_daemon();
    let below = world.holder(&["-k", "a/b"]);
    world.canal(["leader", "-q", "a"]).end().code(75);
    below.finish();
    let writer = script::holder(&world, "--write a");
    world.canal(["leader", "a"]).end().code(0);
    world.canal(["leader", "-q", "a/b"]).end().code(75);
    writer.finish();
}

#[test]
fn a_key_that_several_can_hold_has_no_leader_and_that_is_an_error() {
    let world = World::with_daemon();
    let slots = world.holder(&["-k", "x=3"]);
    for args in [&["leader", "x"][..], &["leader", "--watch", "x"], &["leader", "--json", "x"]] {
        let ended = world.canal(args).end().code(125);
        assert_eq!(ended.stdout, "", "{args:?}");
        let expected = "canal: `x` has 3 slots: several processes can hold it at the same time, \
                        and none of them leads\n\
                        hint: run candidates with -j 1 or with --write: ";
        assert!(ended.stderr.starts_with(expected), "{ended:?}");
    }
    slots.finish();
    let reader = script::holder(&world, "--read x");
    let ended = world.canal(["leader", "x"]).end().code(125);
    let expected = "canal: `x` has only readers: they share it, and none of them leads\n";
    assert!(ended.stderr.starts_with(expected), "{ended:?}");
    reader.finish();
    world.canal(["resize", "x", "--slots", "2"]).end().code(0);
    world.canal(["leader", "x"]).end().code(125);
}

#[test]
fn bad_input_is_an_error_in_one_line() {
    let world = World::with_daemon();
    for (args, message) in [
        (&["leader"][..], "canal: NAME is missing\n"),
        (&["leader", ""], "canal: NAME '': "),
        (&["leader", "/x"], "canal: NAME /x: "),
        (&["leader", "x", "y"], "canal: extra argument `y`\n"),
        (&["leader", "x//3"], "canal: NAME x//3: "),
    ] {
        let ended = world.canal(args).end().code(125);
        assert!(ended.stderr.starts_with(message), "{args:?}: {ended:?}");
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn a_lease_leads_like_a_process() {
    let world = World::with_daemon();
    let lease = Lease::take(&world, "10m", &["-k", "x", "--note", "here"]);
    let shown = world.canal(["leader", "--json", "x"]).end().code(0).json();
    assert_eq!((&shown["leader"]["pid"], &shown["leader"]["note"]), (&0.into(), &"here".into()));
    assert_eq!(shown["leader"]["token"], lease.token);
    assert!(shown["leader"]["lease"]["ttl_ms"].is_u64(), "{shown}");
    lease.release(&world).code(0);
    world.canal(["leader", "-q", "x"]).end().code(75);
}
