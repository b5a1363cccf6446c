//! Kills the daemon in the middle of deadlocks and nested runs: nothing is lost, and sessions are
//! the same after a restart.

use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::backend::{self, over_engines};
use crate::script::{Script, graph, holder, is_free, send_line, stop, until_holds, until_nothing};
use crate::world::process::{Proc, alive, signal, wait_until};
use crate::world::record::{Events, recorded};
use crate::world::{World, journal_only};

over_engines! {
    "requests come back at a host that has joined again":
        a_cycle_that_closes_after_a_restart_is_found,
        a_daemon_killed_as_a_cycle_closes_refuses_exactly_one_request,
        a_waiter_that_comes_back_last_after_a_restart_is_refused_for_the_deadlock;
}

/// Kills the daemon and waits until the next daemon has all waiters again.
#[track_caller]
fn restart(world: &World) {
    let waiting =
        |world: &World| world.look().map(|s| s.keys.iter().map(|key| key.waiting).sum::<u64>());
    let before = waiting(world);
    let pid = world.kill_daemon();
    assert_ne!(world.daemon_pid(), pid, "a new daemon answers");
    wait_until("all waiters are back", || {
        waiting(world) == before && graph(world).waits.len() as u64 == before.unwrap()
    });
}

#[test]
fn nested_runs_that_wait_lose_nothing_by_a_killed_daemon() {
    let world = World::with_daemon();
    let mut one = Script::start(&world, "one", "--write a -k n=3", "--read x");
    let mut two = Script::start(&world, "two", "--read b", "--write a/1");
    let mut three = Script::start(&world, "three", "--read b", "-k x/1 -j 2");
    let end = holder(&world, "--write x");
    for script in [&mut one, &mut two, &mut three] {
        script.go_and_wait(&world);
    }
    let sessions = |world: &World| {
        let mut of: Vec<_> = graph(world)
            .waits
            .into_iter()
            .map(|wait| (wait.waiter.pid, wait.waiter.session, wait.key, wait.mode))
            .collect();
        of.sort_by_key(|of| of.0);
        let keys = world.look().unwrap().keys;
        let held: Vec<_> = keys
            .into_iter()
            .flat_map(|key| {
                let name = key.key.clone();
                key.holders.into_iter().map(move |h| (name.clone(), h.pid, h.session, h.token))
            })
            .collect();
        (of, held)
    };
    let before = sessions(&world);
    assert_eq!((before.0.len(), before.1.len()), (3, 5));
    for _ in 0..3 {
        restart(&world);
        assert_eq!(sessions(&world), before);
    }
    end.finish().code(0);
    for script in [one, two, three] {
        script.succeeds();
    }
    until_nothing(&world);
}

#[test]
fn after_a_restart_a_child_still_passes_the_holds_that_enclose_it() {
    let world = World::with_daemon();
    let inner = "-n --write db/x -k build";
    let mut one = Script::start(&world, "one", "--write db -k build", inner);
    // The enclosing frame of a grandchild waits for another lock during the restart.
    let blocked = holder(&world, "-k gate");
    let nested = "sh -c 'canal run -n --read deep/er -- echo exempt; exit $?'";
    let mut two = Script::doing(&world, "--write deep", "-k gate", nested);
    two.go_and_wait(&world);
    restart(&world);
    one.go();
    one.succeeds();
    blocked.finish().code(0);
    let ended = two.proc.end().code(0);
    assert_eq!(ended.stdout, "exempt\n");
    until_nothing(&world);
}

#[test]
fn after_a_restart_siblings_and_other_sessions_still_exclude_each_other() {
    let world = World::with_daemon();
    let child = recorded("sleep 0.02");
    let body = format!(
        "read go; for i in 1 2 3 4; do canal run --write db/x -- sh -c '{child}' sh $i & done; wait"
    );
    let args = ["run", "--write", "db", "--", "sh", "-c", &body];
    let mut outer = world.canal(args).stdin(Stdio::piped()).spawn();
    until_holds(&world, outer.pid(), "db");
    restart(&world);
    assert!(!is_free(&world, "--read db/x"));
    send_line(&mut outer, "go");
    outer.end().code(0);
    let events = Events::of(&world);
    assert_eq!((events.ended(), events.most_at_once()), (4, 1));
    until_nothing(&world);
}

#[test]
fn a_cycle_that_closes_after_a_restart_is_found() {
    let world = World::with_daemon();
    for closed_by_the_younger in [true, false] {
        let mut elder = Script::start(&world, "elder", "--write a", "-k b=1");
        let mut younger = Script::start(&world, "younger", "-k b=1", "--read a/x");
        let [first, last] = if closed_by_the_younger {
            [&mut elder, &mut younger]
        } else {
            [&mut younger, &mut elder]
        };
        first.go_and_wait(&world);
        restart(&world);
        last.go();
        let victim = younger.refused();
        assert!(victim.stderr.contains("2 sessions would wait for each other"), "{victim:?}");
        elder.succeeds();
        until_nothing(&world);
    }
}

#[test]
fn a_cycle_that_would_close_while_no_daemon_runs_is_found() {
    let world = World::with_daemon();
    let mut elder = Script::start(&world, "elder", "--write a", "--write b");
    let mut younger = Script::start(&world, "younger", "--write b", "--write a");
    // Both ask at the same time, and one of them has to start the daemon first.
    world.kill_daemon_quietly();
    elder.go();
    younger.go();
    younger.refused();
    elder.succeeds();
    until_nothing(&world);
}

#[test]
fn a_daemon_killed_as_a_cycle_closes_refuses_exactly_one_request() {
    let world = World::with_daemon();
    for _ in 0..3 {
        let mut elder = Script::start(&world, "elder", "--write a", "--write b");
        let mut younger = Script::start(&world, "younger", "--write b", "--write a");
        elder.go_and_wait(&world);
        younger.go();
        world.kill_daemon();
        world.status();
        younger.refused();
        elder.succeeds();
        until_nothing(&world);
    }
}

/// Kills the daemon after each record in turn: the journal then has a record that no client knows
/// about yet. One of these records is the refusal.
#[test]
fn a_daemon_killed_after_any_record_of_a_deadlock_refuses_exactly_one_request() {
    if journal_only("the switch for faults counts records of the journal") {
        return;
    }
    for record in 1.. {
        assert!(record < 60, "a ring of two takes fewer records");
        let world = World::new();
        let daemon: Proc = world.daemon(|cmd| cmd.env("CANAL_FAULT", format!("journal:{record}")));
        let mut elder = Script::start(&world, "elder", "--write a", "--write b");
        let mut younger = Script::start(&world, "younger", "--write b", "--write a");
        elder.go_and_wait(&world);
        younger.go();
        younger.refused();
        elder.succeeds();
        assert_eq!(Events::of(&world).started(), ["elder"]);
        until_nothing(&world);
        if alive(daemon.pid()) {
            assert!(record > 5, "only {record} records");
            break;
        }
    }
}

#[test]
fn a_waiter_killed_while_no_daemon_runs_causes_no_deadlock() {
    let world = World::with_daemon();
    let body = "read go; canal run --write b -- true; echo ended $?; read go";
    let args = ["run", "--write", "a", "--", "sh", "-c", body];
    let mut elder = world.canal(args).stdin(Stdio::piped()).spawn();
    until_holds(&world, elder.pid(), "a");
    let mut younger = Script::start(&world, "younger", "--write b", "--write a");
    send_line(&mut elder, "go");
    world.until_waiting("b", 1);
    let inner = crate::world::process::commands(elder.pid())[0];
    // It is stopped first so that it cannot start a daemon.
    stop(inner);
    world.kill_daemon_quietly();
    signal(inner, Signal::SIGKILL);
    wait_until("its script knows", || elder.stdout().contains("ended 137"));
    world.daemons_return();
    if backend::is_engine() {
        world.until_waiting("b", 0);
    }
    younger.go();
    wait_until("the younger one waits", || {
        younger.proc.has_ended() || world.look().is_some() && world.key("a").waiting == 1
    });
    assert_eq!(younger.proc.stderr(), "");
    elder.finish();
    younger.succeeds();
    until_nothing(&world);
}

#[test]
fn a_waiter_that_comes_back_last_after_a_restart_is_refused_for_the_deadlock() {
    let world = World::with_daemon();
    let mut elder = Script::start(&world, "elder", "--write a", "--write b");
    let mut younger = Script::start(&world, "younger", "--write b", "--write a");
    younger.go_and_wait(&world);
    let inner = younger.inner_pid();
    stop(inner);
    world.kill_daemon_quietly();
    elder.go();
    wait_until("the elder asks", || world.look().is_some() && world.key("b").waiting == 1);
    signal(inner, Signal::SIGCONT);
    younger.refused();
    elder.succeeds();
    until_nothing(&world);
}
