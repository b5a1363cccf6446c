//! A script acquires several locks one after another, without nesting: `canal acquire --pid $$`.

use std::process::Stdio;

use crate::script::{holder, holds, is_free, send_line, until_holds, until_nothing};
use crate::world::World;
use crate::world::process::{Proc, wait_until};

/// A shell that evaluates each line of its input and prints the exit code.
fn shell(world: &World) -> Proc {
    let body = "while read -r line; do eval \"$line\"; echo \"$? $line\"; done";
    world.sh(body).stdin(Stdio::piped()).spawn()
}

/// Evaluates a line in the shell and waits for its end. Returns its exit code.
#[track_caller]
fn eval(shell: &mut Proc, line: &str) -> i32 {
    let before = shell.stdout().lines().count();
    send_line(shell, line);
    wait_until(line, || shell.stdout().lines().count() > before);
    let told = shell.stdout();
    let (code, _) = told.lines().last().unwrap().split_once(' ').unwrap();
    code.parse().unwrap()
}

#[test]
fn scripts_that_acquire_in_opposite_orders_deadlock_and_a_release_ends_it() {
    let world = World::with_daemon();
    let (mut elder, mut younger) = (shell(&world), shell(&world));
    assert_eq!(eval(&mut elder, "canal acquire --pid $$ --write a"), 0);
    assert_eq!(eval(&mut younger, "canal acquire --pid $$ --write b"), 0);
    send_line(&mut elder, "canal acquire --pid $$ --write b");
    world.until_waiting("b", 1);
    assert_eq!(eval(&mut younger, "canal acquire --pid $$ --write a"), 75);
    let told = younger.stderr();
    for words in [
        "2 sessions would wait for each other",
        "is waiting to write `a`, held for writing by",
        "is waiting to write `b`, held for writing by",
        &format!("pid {}", elder.pid()),
        &format!("pid {}", younger.pid()),
        "hint: ",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(holds(&world, younger.pid(), "b"), "what it has stays its own");
    assert_eq!(world.key("b").waiting, 1, "the other one waits on");
    assert_eq!(eval(&mut younger, "canal release --pid $$ b"), 0);
    until_holds(&world, elder.pid(), "b");
    wait_until("the elder's command has ended", || elder.stdout().lines().count() == 2);
    assert_eq!(elder.stdout().lines().last(), Some("0 canal acquire --pid $$ --write b"));
    assert_eq!(eval(&mut elder, "canal release --pid $$ --all"), 0);
    assert_eq!(eval(&mut younger, "canal acquire --pid $$ --write b --write a"), 0);
    elder.finish().code(0);
    younger.finish().code(0);
    until_nothing(&world);
}

#[test]
fn a_wait_with_a_time_limit_takes_part_in_a_deadlock() {
    let world = World::with_daemon();
    let (mut one, mut two) = (shell(&world), shell(&world));
    assert_eq!(eval(&mut one, "canal acquire --pid $$ --write a"), 0);
    assert_eq!(eval(&mut two, "canal acquire --pid $$ --write b"), 0);
    assert_eq!(eval(&mut one, "canal acquire -q --pid $$ --write b -w 0.05"), 75);
    send_line(&mut two, "canal acquire --pid $$ --write a");
    world.until_waiting("a", 1);
    assert_eq!(two.stderr(), "");
    assert_eq!(eval(&mut one, "canal acquire -q --pid $$ -n --write b"), 75);
    assert_eq!(world.key("a").waiting, 1, "an attempt that does not wait closes no ring");
    one.finish().code(0);
    two.finish().code(0);
    until_nothing(&world);
}

#[test]
fn an_upgrade_is_released_step_by_step() {
    let world = World::with_daemon();
    let mut one = shell(&world);
    assert_eq!(eval(&mut one, "canal acquire --pid $$ --read conf"), 0);
    assert!(is_free(&world, "--read conf") && !is_free(&world, "--write conf"));
    let reader = holder(&world, "--read conf");
    send_line(&mut one, "canal acquire --pid $$ --write conf");
    world.until_waiting("conf", 1);
    reader.finish().code(0);
    wait_until("it writes", || one.stdout().lines().count() == 2);
    assert!(!is_free(&world, "--read conf"));
    assert_eq!(eval(&mut one, "canal acquire -n --pid $$ --read conf"), 0, "read after write");
    assert_eq!(eval(&mut one, "canal release --pid $$ conf"), 0);
    assert!(!is_free(&world, "--read conf"), "it writes still");
    assert_eq!(eval(&mut one, "canal release --pid $$ conf"), 0);
    assert!(is_free(&world, "--read conf") && !is_free(&world, "--write conf"), "it reads again");
    assert_eq!(eval(&mut one, "canal release --pid $$ conf"), 0);
    assert!(is_free(&world, "--write conf"));
    assert_eq!(eval(&mut one, "canal release -q --pid $$ conf"), 125);
    one.finish().code(0);
}

#[test]
fn two_requests_of_one_script_at_once_both_take_part_in_deadlocks() {
    let world = World::with_daemon();
    let third = holder(&world, "--write c");
    let (mut elder, mut younger) = (shell(&world), shell(&world));
    assert_eq!(eval(&mut elder, "canal acquire --pid $$ --write a"), 0);
    assert_eq!(eval(&mut younger, "canal acquire --pid $$ --write b"), 0);
    send_line(
        &mut elder,
        "canal acquire --pid $$ --write b & canal acquire --pid $$ --write c; wait",
    );
    world.until_waiting("b", 1);
    world.until_waiting("c", 1);
    assert_eq!(eval(&mut younger, "canal acquire --pid $$ --write a"), 75);
    third.finish().code(0);
    until_holds(&world, elder.pid(), "c");
    younger.finish().code(0);
    until_holds(&world, elder.pid(), "b");
    elder.finish().code(0);
    until_nothing(&world);
}

#[test]
fn a_command_can_release_its_lock_before_it_ends_and_its_children_cannot() {
    let world = World::with_daemon();
    let body = "sh -c 'canal release -q --pid $$ a; exit $?'; echo child $?
        read go; canal release --pid $$ a; echo self $?; read go";
    let args = ["run", "--write", "a", "--", "sh", "-c", body];
    let mut command = world.canal(args).stdin(Stdio::piped()).spawn();
    wait_until("the child tried", || command.stdout() == "child 125\n");
    assert!(!is_free(&world, "--read a"));
    send_line(&mut command, "go");
    wait_until("it was given back", || command.stdout().ends_with("self 0\n"));
    assert!(is_free(&world, "--write a"));
    command.finish();
    until_nothing(&world);
}

#[test]
fn a_request_with_a_time_limit_is_refused_for_a_deadlock_at_once() {
    let world = World::with_daemon();
    let (mut elder, mut younger) = (shell(&world), shell(&world));
    assert_eq!(eval(&mut elder, "canal acquire --pid $$ --write a"), 0);
    assert_eq!(eval(&mut younger, "canal acquire --pid $$ --write b"), 0);
    send_line(&mut elder, "canal acquire --pid $$ --write b -w 1h");
    world.until_waiting("b", 1);
    assert_eq!(eval(&mut younger, "canal acquire --pid $$ --write a -w 1h -E 4"), 75);
    assert!(
        younger.stderr().contains("2 sessions would wait for each other"),
        "{}",
        younger.stderr()
    );
    younger.finish().code(0);
    until_holds(&world, elder.pid(), "b");
    elder.finish().code(0);
}
