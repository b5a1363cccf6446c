//! There is one line per terminal, however many canals wait there, and no trace of it afterwards.

use std::fs;

use nix::sys::signal::Signal;

use crate::screen::{CTRL_C, CTRL_Z, Screen, deploy};
use crate::world::World;
use crate::world::process::{installed_or_skip, signal, sleeps, wait_until};

/// Starts this many waiters in the background of a script, and waits for them.
fn crowd(number: usize) -> String {
    let waiter = "canal run --progress tty -k x -- sh -c 'echo done' 2>&3 3>&-";
    // The shell itself would report that a waiter was killed.
    format!("exec 3>&2 2>/dev/null; for i in $(seq {number}); do {waiter} & done; wait; echo all")
}

fn waiters(world: &World) -> Vec<i32> {
    world.key("x").waiters.iter().map(|waiter| waiter.pid.cast_signed()).collect()
}

fn lines_of_waits(shown: &str) -> usize {
    shown.lines().filter(|line| line.contains("waiting for")).count()
}

#[test]
fn when_the_one_that_draws_is_killed_another_takes_over() {
    let world = World::with_daemon();
    let holder = deploy(&world, "x");
    let mut screen = Screen::start(&world, &["sh", "-c", &crowd(4)], 24, 80);
    for left in (2..=4).rev() {
        let counted = format!("waiting for x ({left} on this terminal)");
        let shown = screen.until("all are counted", |shown| shown.contains(&counted));
        assert_eq!(lines_of_waits(&shown), 1, "{shown}");
        // The first waiter probably began to draw first.
        signal(waiters(&world)[0], Signal::SIGKILL);
        world.until_waiting("x", left - 1);
    }
    let alone = |shown: &str| shown.contains("waiting for x, next in line; held ");
    screen.until("the last one draws for itself", alone);
    holder.finish();
    let shown = screen.until("all have ended", |shown| shown.ends_with("all"));
    assert_eq!(lines_of_waits(&shown), 0, "{shown}");
}

#[test]
fn when_the_one_that_draws_is_stopped_another_takes_over() {
    let world = World::with_daemon();
    let holder = deploy(&world, "x");
    let mut screen = Screen::start(&world, &["sh", "-c", &crowd(2)], 24, 80);
    screen.until("both are counted", |shown| shown.contains("waiting for x (2 on this terminal)"));
    // One of the two draws.
    for waiter in waiters(&world) {
        signal(waiter, Signal::SIGSTOP);
        let before = screen.until("there is one line", |shown| lines_of_waits(shown) == 1);
        let shown =
            screen.until("the line goes on", |shown| lines_of_waits(shown) == 1 && shown != before);
        assert!(shown.contains("(2 on this terminal)"), "{shown}");
        signal(waiter, Signal::SIGCONT);
    }
    holder.finish();
    let shown = screen.until("all have ended", |shown| shown.ends_with("all"));
    assert_eq!(lines_of_waits(&shown), 0, "{shown}");
}

#[test]
fn whoever_is_granted_starts_on_a_clean_line() {
    let world = World::with_daemon();
    let holder = deploy(&world, "x");
    let mut screen = Screen::start(&world, &["sh", "-c", &crowd(4)], 24, 80);
    screen.until("all are counted", |shown| shown.contains("waiting for x (4 on this terminal)"));
    holder.finish();
    let shown = screen.until("all have ended", |shown| shown.ends_with("all"));
    assert_eq!(shown, "done\ndone\ndone\ndone\nall");
}

#[test]
fn the_line_keeps_away_from_the_output_of_a_command_of_the_same_job() {
    let world = World::with_daemon();
    world.program("mkfifo", ["go"]).end().code(0);
    let script = "canal run -k x -- sh -c 'printf begun; cat go' &
        until canal run -n -q -k y -- test -e waits; do sleep 0.01; done
        canal run --progress tty -k x -- echo second; wait";
    let mut screen = Screen::start(&world, &["sh", "-c", script], 24, 80);
    screen.until("the first one runs", |shown| shown == "begun");
    fs::write(world.path("work/waits"), "").unwrap();
    world.until_waiting("x", 1);
    let waiter = waiters(&world)[0];
    let before = sleeps(waiter);
    wait_until("it has had several chances to draw", || sleeps(waiter) > before + 1);
    assert_eq!(screen.shown(), "begun");
    fs::write(world.path("work/go"), " and ended\n").unwrap();
    screen.until("the second one ran", |shown| shown == "begun and ended\nsecond");
}

#[test]
fn an_interrupted_wait_leaves_no_line() {
    if !installed_or_skip("bash", "an interactive shell") {
        return;
    }
    let world = World::with_daemon();
    let holder = deploy(&world, "x");
    for (keys, way) in [(CTRL_C, ""), (CTRL_C, "--max-run 600 "), ("\x1c", "")] {
        let mut screen = Screen::with_shell(&world, 24, 80);
        screen.keys(&format!("ulimit -c 0; canal run -k x {way}-- true\n"));
        screen.until("it waits", |shown| lines_of_waits(shown) == 1);
        screen.keys(keys);
        let shown = screen.until_prompt();
        assert_eq!(lines_of_waits(&shown), 0, "{shown}");
    }
    holder.finish();
    world.until_idle();
}

#[test]
fn a_stopped_wait_leaves_no_line_and_lets_others_draw_theirs() {
    if !installed_or_skip("bash", "job control") {
        return;
    }
    let world = World::with_daemon();
    let holder = deploy(&world, "x");
    let mut screen = Screen::with_shell(&world, 24, 80);
    screen.keys("canal run -k x -- echo first\n");
    screen.until("it waits", |shown| lines_of_waits(shown) == 1);
    screen.keys(CTRL_Z);
    let shown = screen.until("it is stopped", |shown| shown.contains("Stopped"));
    assert_eq!(lines_of_waits(&shown), 0, "{shown}");
    screen.until_prompt();
    screen.keys("canal run -k x -- echo second\n");
    screen.until("the next one draws", |shown| lines_of_waits(shown) == 1);
    screen.keys(CTRL_C);
    let shown = screen.until_prompt();
    assert_eq!(lines_of_waits(&shown), 0, "{shown}");
    screen.keys("fg\n");
    screen.until("the first one draws again", |shown| lines_of_waits(shown) == 1);
    holder.finish();
    let shown = screen.until("it ran", |shown| shown.contains("\nfirst\n"));
    assert_eq!(lines_of_waits(&shown), 0, "{shown}");
}

#[test]
fn in_the_background_nothing_is_drawn() {
    if !installed_or_skip("bash", "job control") {
        return;
    }
    let world = World::with_daemon();
    let holder = deploy(&world, "x");
    let mut screen = Screen::with_shell(&world, 24, 80);
    screen.keys("canal run -k x -- sleep 0 &\n");
    world.until_waiting("x", 1);
    screen.keys("echo here; wait; echo over\n");
    screen.until("the shell goes on", |shown| shown.contains("\nhere"));
    assert_eq!(lines_of_waits(&screen.shown()), 0);
    holder.finish();
    let shown = screen.until("it has ended", |shown| shown.contains("\nover"));
    assert_eq!(lines_of_waits(&shown), 0, "{shown}");
}

#[test]
fn the_way_of_showing_a_wait_can_be_chosen() {
    let world = World::with_daemon();
    let holder = deploy(&world, "x");
    let mut screens = ["tty", "log", "none"].map(|how| {
        let command = ["canal", "run", "-v", "--progress", how, "-k", "x", "--", "true"];
        let screen = Screen::start(&world, &command, 24, 200);
        (how, screen)
    });
    world.until_waiting("x", 3);
    let pid = holder.pid();
    for (how, screen) in &mut screens {
        let names = |shown: &str| shown.contains(&format!("./deploy.sh (pid {pid})"));
        let shows = |shown: &str| match *how {
            "tty" => shown.starts_with("waiting for x, ") && names(shown),
            "log" => {
                shown.starts_with("canal: 2")
                    && shown.contains(" waiting for x for 0s, ")
                    && names(shown)
            }
            _ => shown.is_empty(),
        };
        screen.until(how, shows);
    }
    // Without a terminal, only `auto` writes a line to its log.
    let mut logs = ["auto", "tty"].map(|how| {
        let waiter = world.canal(["run", "-v", "--progress", how, "-k", "x", "--", "true"]).spawn();
        (how, waiter)
    });
    world.until_waiting("x", 5);
    let [(_, auto), (_, tty)] = &mut logs;
    wait_until("a log gets its line", || auto.stderr().contains(" waiting for x for 0s, "));
    assert_eq!(tty.stderr(), "");
    holder.finish();
    let ran = |shown: &str| shown.contains("canal: acquired x slot 0 ");
    for (how, mut screen) in screens {
        let shown = screen.until("it ran", ran);
        assert_eq!(lines_of_waits(&shown) > 0, how == "log", "{how}: {shown}");
    }
    for (_, log) in logs {
        log.end().code(0);
    }
}
