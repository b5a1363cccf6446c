//! `canal test` reports by exit code whether locks are free, without taking them.

use serde_json::json;

use crate::script;
use crate::world::World;
use crate::world::process::wait_until;

/// The exit code of `canal test ARGS`.
fn asked(world: &World, args: &str) -> i32 {
    world.canal(["test"].into_iter().chain(args.split(' '))).end().code.unwrap()
}

/// The exit code of `canal run -n LOCK -- true`.
fn tried(world: &World, lock: &str) -> i32 {
    let args = ["run", "-q", "-n"].into_iter().chain(lock.split(' ')).chain(["--", "true"]);
    world.canal(args).end().code.unwrap()
}

#[test]
fn a_free_lock_is_0_a_busy_one_75_and_nothing_is_taken() {
    let world = World::with_daemon();
    let free = world.canal(["test", "x"]).end().code(0);
    assert_eq!((free.stdout.as_str(), free.stderr.as_str()), ("", ""));
    assert!(world.look().unwrap().keys.is_empty());
    let holder = world.holder(&["-k", "x"]);
    let busy = world.canal(["test", "x"]).end().code(75);
    assert!(busy.stderr.starts_with("canal: `x` is full: 1 of 1 slots held\n"), "{busy:?}");
    assert!(busy.stderr.contains(&format!("held by pid {} `cat`", holder.pid())), "{busy:?}");
    assert_eq!(busy.stdout, "");
    assert_eq!(world.canal(["test", "-q", "x"]).end().code(75).stderr, "");
    assert_eq!(world.key("x").waiting, 0);
    holder.finish();
    assert_eq!(asked(&world, "x"), 0);
}

#[test]
fn a_refusal_that_does_not_name_all_holders_says_where_they_are() {
    let world = World::with_daemon();
    let hold = || world.holder(&["-k", "x=6"]);
    let few = [hold(), hold(), hold(), hold()];
    let refused = || world.canal(["test", "-k", "x=6:3"]).end().code(75).stderr;
    assert!(!refused().contains("hint"), "{}", refused());
    let rest = [hold(), hold()];
    let said = refused();
    let hint = "hint: run `canal status` to see all holders; these have held the lock longest";
    assert_eq!(said.matches("held by").count(), 5, "{said}");
    assert!(said.ends_with(&format!("{hint}\n")), "{said}");
    few.into_iter().chain(rest).for_each(|holder| drop(holder.finish()));
}

#[test]
fn a_question_gets_what_a_request_that_does_not_wait_gets() {
    let world = World::with_daemon();
    let slots = world.holder(&["-k", "s=3:2"]);
    let buckets = world.holder(&["-k", "b=2x2:3"]);
    let reader = script::holder(&world, "--read tree/r");
    let writer = script::holder(&world, "--write tree/w");
    let waiter = world.waiter("s", &["-j", "3", "--count", "2"], &["true"]);
    for lock in [
        "-k free",
        "-k free=2:2",
        "-k b=2x2",
        "-k b=2x2:2",
        "-k b=3x2:3",
        "-k b=1x1",
        "-k free -k b=2x2",
        "-k free -k b=2x2:2",
        "-k s=3",
        "--read tree/r",
        "--write tree/r",
        "--read tree/w/x",
        "--read tree",
        "--write tree/z",
        "-k tree/w/x",
        "-k tree/r",
        "--read free --write tree/z -k b=2x2",
        "--read free --write tree/z -k b=2x2:2",
    ] {
        let (question, request) = (asked(&world, lock), tried(&world, lock));
        assert!([0, 75].contains(&question), "{lock}: {question}");
        assert_eq!(question, request, "{lock}");
    }
    // The operands are keys too.
    for (args, code) in
        [("free b=2x2", 0), ("free s=3", 75), ("b=2x2 --for 1", 0), ("--for 2 b=2x2", 75)]
    {
        assert_eq!(asked(&world, args), code, "{args}");
    }
    for one in [slots, buckets, reader, writer] {
        one.finish();
    }
    waiter.end().code(0);
}

#[test]
fn within_a_session_its_own_locks_are_free() {
    let world = World::with_daemon();
    let within = |lock: &str, question: &str, code| {
        let script = format!("canal test {question}; exit $?");
        world.canal(["run", "-k", lock, "--", "sh", "-c", &script]).end().code(code);
    };
    within("x", "x", 0);
    within("x", "--new-session x", 75);
    within("x=1x1", "x=1x1", 75);
}

#[test]
fn a_lock_is_free_as_soon_as_its_command_was_waited_for() {
    let world = World::with_daemon().on_one_host();
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
            canal run -k x -- true && canal test x || exit 9
        done";
    world.sh(script).end().code(0);
}

#[test]
fn a_stopped_waiter_ahead_makes_no_lock_busy() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "x=2"]);
    let waiter = world.waiter("x", &["-j", "2", "--count", "2"], &["true"]);
    assert_eq!(asked(&world, "x=2"), 75);
    waiter.stop();
    wait_until("the stopped waiter bars nobody", || asked(&world, "x=2") == 0);
    waiter.signal(nix::sys::signal::Signal::SIGCONT);
    holder.finish();
    waiter.end().code(0);
}

#[test]
fn questions_in_json_name_what_would_be_granted_or_the_holders() {
    let world = World::with_daemon();
    let free = world.canal(["test", "--json", "x", "--per", "2"]).end().code(0).json();
    assert_eq!(
        free,
        json!({ "free": true, "keys": [{
            "key": "x", "acquired": 1, "slots": [{ "slot": 0, "bucket": 0 }], "mode": "counted",
        }] })
    );
    let holder = world.holder(&["-k", "x"]);
    let busy = world.canal(["test", "--json", "x"]).end().code(75).json();
    assert_eq!((&busy["free"], &busy["refused"]), (&json!(false), &json!("full")));
    assert_eq!(busy["holders"][0]["pid"], holder.pid());
    assert!(busy["message"].is_string());
    holder.finish();
    let wrong = world.canal(["test"]).end().code(125);
    assert!(wrong.stderr.starts_with("canal: no lock given"), "{wrong:?}");
}
