//! Job control and the waiting line, on a pseudo-terminal.

use nix::sys::signal::Signal;

use crate::backend::over_engines;
use crate::terminal::Terminal;
use crate::world::World;
use crate::world::process::{installed_or_skip, signal, state, wait_until};
use crate::world::record::{Events, recorded};

over_engines! {
    "`canal run` stays as a parent in the foreground":
        ctrl_z_while_waiting_lets_others_pass_and_fg_goes_on;
}

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";
const CTRL_BACKSLASH: &str = "\x1c";

const WAYS: [&[&str]; 3] = [
    &["run", "-k", "x"],
    &["run", "-k", "x", "--with-children"],
    &["run", "-k", "x", "--max-run", "600"],
];

fn canal(way: &[&str]) -> String {
    format!("canal {} --", way.join(" "))
}

#[test]
fn ctrl_c_and_ctrl_backslash_end_the_command_and_free_the_lock() {
    let world = World::with_daemon();
    for way in WAYS {
        for (keys, which) in [(CTRL_C, Signal::SIGINT), (CTRL_BACKSLASH, Signal::SIGQUIT)] {
            let mut command = vec!["canal"];
            command.extend(way);
            command.extend(["--", "sh", "-c", "ulimit -c 0; echo up; exec sleep 600"]);
            let mut terminal = Terminal::start(&world, &command);
            terminal.until("up\r\n");
            assert_eq!(world.held("x"), 1);
            terminal.keys(keys);
            let (ended, _) = terminal.end();
            assert_eq!(ended.signal, Some(which as i32), "{way:?}");
            world.until_held("x", 0);
        }
    }
}

#[test]
fn a_command_that_catches_ctrl_c_gets_it_once_and_may_go_on() {
    let world = World::with_daemon();
    let body =
        "trap 'n=$((n + 1))' INT; n=0; echo up; read line; echo \"interrupted $n: $line\"; exit 3";
    for way in WAYS {
        let mut command = vec!["canal"];
        command.extend(way);
        command.extend(["--", "bash", "-c", body]);
        let mut terminal = Terminal::start(&world, &command);
        terminal.until("up\r\n");
        terminal.keys(CTRL_C);
        // The terminal must have handled the signal before it passes the line to the command.
        terminal.until("^C");
        terminal.keys("line\n");
        let (ended, seen) = terminal.end();
        assert_eq!(ended.code, Some(3), "{way:?}: {seen}");
        assert!(seen.contains("interrupted 1: line"), "{way:?}: {seen}");
    }
}

#[test]
fn ctrl_c_that_the_supervisor_sees_after_the_end_of_the_command_does_not_end_it() {
    let world = World::with_daemon();
    let body = "trap : INT; echo up; read line; exit 3";
    let way = ["canal", "run", "-k", "x", "--max-run", "600", "--", "bash", "-c", body];
    let mut terminal = Terminal::start(&world, &way);
    terminal.until("up\r\n");
    let command = world.key("x").holders[0].pid.cast_signed();
    let supervisor = terminal.session.child.id().cast_signed();
    // The supervisor stops with the command, but only the command continues.
    signal(command, Signal::SIGSTOP);
    wait_until("both are stopped", || [command, supervisor].map(state) == [Some('T'); 2]);
    signal(command, Signal::SIGCONT);
    wait_until("the command reads", || state(command) == Some('S'));
    terminal.keys(CTRL_C);
    terminal.until("^C");
    terminal.keys("line\n");
    wait_until("the command has ended", || state(command) == Some('Z'));
    signal(supervisor, Signal::SIGCONT);
    let (ended, _) = terminal.end();
    assert_eq!((ended.code, ended.signal), (Some(3), None));
    world.until_idle();
}

#[test]
fn ctrl_c_while_waiting_leaves_the_queue() {
    let world = World::with_daemon();
    for way in WAYS {
        let holder = world.holder(&["-k", "x"]);
        let mut command = vec!["canal"];
        command.extend(way);
        command.extend(["--", "true"]);
        let mut terminal = Terminal::start(&world, &command);
        world.until_waiting("x", 1);
        terminal.keys(CTRL_C);
        let (ended, _) = terminal.end();
        assert_eq!(ended.signal, Some(Signal::SIGINT as i32), "{way:?}");
        world.until_waiting("x", 0);
        holder.finish();
        world.until_idle();
    }
}

#[test]
fn ctrl_z_and_fg_work_as_without_canal() {
    if !installed_or_skip("bash", "job control") {
        return;
    }
    let world = World::with_daemon();
    let plain: [&[&str]; 1] = [&[]];
    for way in plain.iter().chain(&WAYS) {
        let canal = if way.is_empty() { String::new() } else { canal(way) };
        let mut shell = Terminal::start(&world, &["bash", "--norc", "--noprofile", "-i"]);
        shell.until("$ ");
        shell.keys(&format!("{canal} sh -c 'echo u\"\"p; read a; echo g\"\"ot $a; exit 4'\n"));
        shell.until("up\r\n");
        shell.keys(CTRL_Z);
        shell.until("Stopped");
        shell.until("$ ");
        if !way.is_empty() {
            assert_eq!(world.held("x"), 1, "a stopped command keeps its lock");
            assert_eq!(world.key("x").holders[0].state.as_deref(), Some("stopped"));
        }
        shell.keys("echo status $?\n");
        shell.until("status 148\r\n");
        shell.keys("fg\n");
        shell.until("sh -c");
        shell.keys("hello\n");
        shell.until("got hello\r\n");
        shell.until("$ ");
        shell.keys("echo status $?\n");
        shell.until("status 4\r\n");
        shell.keys("exit\n");
        shell.end();
        world.until_idle();
    }
}

#[test]
fn ctrl_z_while_waiting_lets_others_pass_and_fg_goes_on() {
    if !installed_or_skip("bash", "job control") {
        return;
    }
    let world = World::with_daemon();
    let body = recorded(":");
    let holder = world.holder(&["-k", "x"]);
    let mut shell = Terminal::start(&world, &["bash", "--norc", "--noprofile", "-i"]);
    shell.until("$ ");
    shell.keys(&format!("canal run -k x -- sh -c '{body}' sh suspended\n"));
    world.until_waiting("x", 1);
    shell.keys(CTRL_Z);
    shell.until("Stopped");
    let next = world.waiter("x", &[], &["sh", "-c", &body, "sh", "next"]);
    holder.finish();
    next.end().code(0);
    shell.keys("fg\n");
    wait_until("both ran", || Events::of(&world).ended() == 2);
    assert_eq!(Events::of(&world).started(), ["next", "suspended"]);
    shell.keys("exit\n");
    shell.end();
    world.until_idle();
}

#[test]
fn a_command_in_the_background_is_not_stopped_by_canal() {
    if !installed_or_skip("bash", "job control") {
        return;
    }
    let world = World::with_daemon();
    for way in WAYS {
        let mut shell = Terminal::start(&world, &["bash", "--norc", "--noprofile", "-i"]);
        shell.until("$ ");
        shell.keys("stty tostop\n");
        shell.until("$ ");
        // With `tostop`, the kernel stops a background process that writes to the terminal.
        shell.keys(&format!("{} sleep 600 &\n", canal(way)));
        world.until_held("x", 1);
        let pid = world.key("x").holders[0].pid.cast_signed();
        wait_until("the command runs", || state(pid) == Some('S'));
        shell.keys("kill %1; wait %1; echo status $?\n");
        shell.until("status 143\r\n");
        shell.keys("exit\n");
        shell.end();
        world.until_idle();
    }
}

#[test]
fn the_command_has_the_terminal() {
    let world = World::with_daemon();
    let probe = "tty; stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal";
    let run = |command: &[&str]| Terminal::start(&world, command).end().1;
    let lines = |text: String| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let plain = lines(run(&["sh", "-c", probe]));
    assert_eq!(plain, ["24 80", "terminal"]);
    for way in WAYS {
        let mut command = vec!["canal"];
        command.extend(way);
        command.extend(["--", "sh", "-c", probe]);
        assert_eq!(lines(run(&command)), plain, "{way:?}");
    }
}

#[test]
fn a_terminal_shows_at_once_what_the_run_waits_for() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "db/main"]);
    let mut terminal =
        Terminal::start(&world, &["canal", "run", "-k", "db/main", "--", "echo", "mine"]);
    let line = terminal.until(&holder.pid_text());
    assert!(line.contains("db/main"), "{line}");
    holder.finish();
    let (ended, seen) = terminal.end();
    assert_eq!(ended.code, Some(0));
    assert!(seen.ends_with("mine\r\n"), "{seen:?}");
    assert!(!seen.contains("waiting") || seen.contains("\x1b["), "the line is cleared: {seen:?}");

    let holder = world.holder(&["-k", "db/main"]);
    let quiet = ["canal", "run", "-q", "-k", "db/main", "--", "echo", "mine"];
    let terminal = Terminal::start(&world, &quiet);
    world.until_waiting("db/main", 1);
    holder.finish();
    assert_eq!(terminal.end().1, "mine\r\n");
}

#[test]
fn a_waiting_line_in_the_background_does_not_stop_the_wait() {
    if !installed_or_skip("bash", "job control") {
        return;
    }
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let mut shell = Terminal::start(&world, &["bash", "--norc", "--noprofile", "-i"]);
    shell.until("$ ");
    shell.keys("stty tostop\n");
    shell.until("$ ");
    shell.keys("canal run -k x -- touch ran &\n");
    world.until_waiting("x", 1);
    let pid = world.key("x").waiters[0].pid.cast_signed();
    assert_ne!(state(pid), Some('T'));
    holder.finish();
    wait_until("it ran", || world.path("work/ran").exists());
    shell.keys("exit\n");
    shell.end();
}
