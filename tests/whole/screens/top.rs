//! `canal top` on a terminal: its display and its actions, and that it restores the terminal.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::sys::signal::Signal;
use nix::sys::termios::{FlowArg, tcflow};

use crate::screen::{CTRL_C, CTRL_Z, Screen, deploy};
use crate::world::World;
use crate::world::process::{installed_or_skip, signal, wait_until};

const ENTER: &str = "\r";
const ESCAPE: &str = "\x1b";
const DOWN: &str = "\x1b[B";

/// The sequences that begin and end the use of the alternate screen.
const OTHER_SCREEN: [&[u8]; 2] = [b"\x1b[?1049h", b"\x1b[?1049l"];

/// The processes of `canal top` in this world.
fn tops(world: &World) -> Vec<i32> {
    let is_top = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"top")
    };
    world.processes().into_iter().filter(is_top).collect()
}

/// A shell that has saved the modes of its terminal in a file.
fn shell(world: &World) -> Screen {
    let mut screen = Screen::with_shell(world, 24, 80);
    screen.keys("stty -g > before; echo ready\n");
    screen.until("the modes are noted", |shown| shown.contains("\nready"));
    screen
}

/// Waits for the prompt, and compares the modes of the terminal with the saved ones.
#[track_caller]
fn assert_as_before(screen: &mut Screen, number: usize) {
    let end = format!("\nas before {number}");
    screen.keys(&format!("stty -g | cmp - before && echo as before {number}\n"));
    let shown = screen.until("the modes are those of before", |shown| shown.contains(&end));
    assert!(shown.starts_with("$ stty -g > before"), "the first screen is back:\n{shown}");
    let written = screen.written();
    let [begun, ended] = OTHER_SCREEN.map(|it| memchr::memmem::find_iter(written, it).count());
    assert_eq!(begun, ended, "each other screen was left");
}

fn terminal(path: &str) -> fs::File {
    fs::OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY).open(path).unwrap()
}

/// Whether a process polls two descriptors: the terminal, and its signals.
fn waits_for_terminal(pid: i32) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.split(' ').nth(2) == Some("0x2")
}

/// Whether a signal is pending for a process.
fn is_pending(pid: i32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:\t")).unwrap();
    u64::from_str_radix(pending, 16).unwrap() & 1 << (signal as u32 - 1) != 0
}

fn is_list(shown: &str) -> bool {
    shown.starts_with("1 key, ") && shown.contains("> deploy")
}

/// Screens for the page: the list, the page of a key, a chain, a question.
pub(crate) fn screens(lines: u16, columns: u16) -> Vec<String> {
    let world = World::with_daemon();
    let holder = deploy(&world, "deploy");
    let ci = ["--note", "https://ci.example/run/7"];
    let waiter = world.waiter("deploy", &ci, &["./deploy.sh", "--again"]);
    let others = [("gpu", "4"), ("team/nightly", "1")]
        .map(|(key, slots)| world.holder(&["-k", key, "-j", slots]));
    let mut screen = Screen::start(&world, &["canal", "top"], lines, columns);
    let mut shown = vec![screen.until("the list", |shown| shown.contains("  team/nightly"))];
    for (keys, what) in [
        (ENTER, "> holds"),
        (DOWN, "> #1"),
        ("w", "chain of waits"),
        (ESCAPE, "> #1"),
        ("x", "[y/N]"),
    ] {
        screen.keys(keys);
        let asked = "waiting for the daemon";
        let now = screen.until(what, |shown| shown.contains(what) && !shown.contains(asked));
        if what != "> holds" && keys != ESCAPE {
            shown.push(now);
        }
    }
    screen.keys("q");
    let (holds, waits) = (holder.pid_text(), waiter.pid_text());
    holder.finish();
    waiter.kill();
    others.into_iter().for_each(|other| drop(other.finish()));
    // Each replacement has the length of the original, so columns and ends of lines stay in place.
    let folder = world.path("work").display().to_string();
    let number = |of: &str, like: &str| like.chars().cycle().take(of.len()).collect::<String>();
    let replaced = |text: String| {
        let text = text.replace(&folder, &number(&folder, "/srv/ci/work/deploy/checkout"));
        let text = text.replace(&holds, &number(&holds, "8127"));
        text.replace(&waits, &number(&waits, "9304"))
    };
    shown.into_iter().map(replaced).collect()
}

#[test]
fn however_it_ends_the_terminal_is_as_it_was() {
    if !installed_or_skip("bash", "an interactive shell") {
        return;
    }
    let world = World::with_daemon();
    let holder = deploy(&world, "deploy");
    let ends: [(&str, Option<Signal>, &str); 6] = [
        ("q", None, "0"),
        (CTRL_C, None, "130"),
        ("", Some(Signal::SIGTERM), "143"),
        ("", Some(Signal::SIGHUP), "129"),
        ("", Some(Signal::SIGQUIT), "131"),
        ("", Some(Signal::SIGINT), "130"),
    ];
    for (number, (keys, by, code)) in ends.into_iter().enumerate() {
        let mut screen = shell(&world);
        screen.keys("canal top\n");
        screen.until("it is shown", is_list);
        match by {
            None => screen.keys(keys),
            Some(by) => signal(tops(&world)[0], by),
        }
        let end = format!("it ends by {by:?}, {keys:?}");
        screen.until(&end, |shown| shown.starts_with("$ stty") && shown.ends_with("\n$"));
        screen.keys("echo code $?\n");
        screen.until(&end, |shown| shown.ends_with(&format!("\ncode {code}\n$")));
        assert_as_before(&mut screen, number);
    }
    holder.finish();
}

#[test]
fn a_stopped_one_leaves_the_terminal_and_takes_it_again() {
    if !installed_or_skip("bash", "job control") {
        return;
    }
    let world = World::with_daemon();
    let holder = deploy(&world, "deploy");
    let mut screen = shell(&world);
    screen.keys("canal top\n");
    screen.until("it is shown", is_list);
    screen.keys(CTRL_Z);
    screen.until("it is stopped", |shown| shown.contains("Stopped") && shown.ends_with("\n$"));
    assert_as_before(&mut screen, 1);
    screen.keys("fg\n");
    screen.until("it is shown again", is_list);
    // A stop that it cannot notice.
    let pid = tops(&world)[0];
    signal(pid, Signal::SIGSTOP);
    screen.until("the shell says so", |shown| shown.contains("Stopped"));
    screen.keys("fg\n");
    screen.until("it is shown again", is_list);
    screen.keys("q");
    wait_until("it ends", || tops(&world).is_empty());
    assert_as_before(&mut screen, 2);
    holder.finish();
}

#[test]
fn it_ends_by_a_signal_while_the_terminal_takes_nothing() {
    if !installed_or_skip("bash", "an interactive shell") {
        return;
    }
    let world = World::with_daemon();
    let holder = deploy(&world, "deploy");
    let mut screen = shell(&world);
    screen.keys("canal top; echo code $?\n");
    screen.until("it is shown", is_list);
    let pid = tops(&world)[0];
    let terminal = terminal(&format!("/proc/{pid}/fd/1"));
    tcflow(&terminal, FlowArg::TCOOFF).unwrap();
    screen.keys("?");
    let second = world.holder(&["-k", "second"]);
    wait_until("it waits for the terminal", || waits_for_terminal(pid));
    signal(pid, Signal::SIGTERM);
    wait_until("it ends", || tops(&world).is_empty());
    tcflow(&terminal, FlowArg::TCOON).unwrap();
    screen.until("the shell goes on", |shown| shown.contains("code 143"));
    holder.finish();
    second.finish();
}

#[test]
fn it_draws_on_the_other_screen_though_the_terminal_took_nothing_at_its_start() {
    let world = World::with_daemon();
    let holder = deploy(&world, "deploy");
    let script = "tty > name; until [ -e go ]; do sleep 0.01; done; exec canal top";
    let mut screen = Screen::start(&world, &["sh", "-c", script], 24, 80);
    wait_until("the script runs", || world.read("name").ends_with('\n'));
    let terminal = terminal(world.read("name").trim_end());
    tcflow(&terminal, FlowArg::TCOOFF).unwrap();
    fs::write(world.path("work/go"), "").unwrap();
    wait_until("it waits for the terminal", || {
        tops(&world).first().copied().is_some_and(waits_for_terminal)
    });
    let pid = tops(&world)[0];
    // It abandons what it was writing for this signal.
    signal(pid, Signal::SIGWINCH);
    wait_until("it has heard the signal", || !is_pending(pid, Signal::SIGWINCH));
    wait_until("it waits for the terminal again", || waits_for_terminal(pid));
    tcflow(&terminal, FlowArg::TCOON).unwrap();
    screen.until("it is shown", is_list);
    screen.keys("q");
    wait_until("it ends", || tops(&world).is_empty());
    let written = screen.written();
    let times = OTHER_SCREEN.map(|it| memchr::memmem::find_iter(written, it).count());
    assert_eq!(times, [1, 1], "it began to use the other screen, and ended it");
    holder.finish();
}

#[test]
fn it_goes_on_with_the_next_daemon_and_says_if_there_is_none() {
    let world = World::with_daemon();
    let holder = deploy(&world, "deploy");
    let mut screen = Screen::start(&world, &["canal", "top"], 24, 80);
    screen.until("it is shown", is_list);
    world.kill_daemon();
    let second = world.holder(&["-k", "second"]);
    screen.until("the next daemon reports", |shown| {
        shown.starts_with("2 keys, 2 holders") && shown.contains("  second")
    });
    let mut alone = Screen::start(&world, &["canal", "top", "--no-start"], 24, 80);
    alone.until("it is shown", |shown| shown.starts_with("2 keys"));
    screen.keys("q");
    wait_until("one is left", || tops(&world).len() == 1);
    holder.finish();
    second.finish();
    world.canal(["daemon", "--stop"]).end().code(0);
    let shown = alone.until("it says so", |shown| shown.contains("canal: "));
    assert!(shown.contains("canal: no daemon is running at"), "{shown}");
    wait_until("it has ended", || tops(&world).is_empty());
    let written = String::from_utf8_lossy(alone.written()).into_owned();
    let end = written.rfind("\x1b[?1049l").unwrap();
    assert!(written[end..].contains("canal: "), "on the first screen: {written:?}");
}

#[test]
fn keys_holders_and_waiters_can_be_looked_into() {
    let world = World::with_daemon();
    let evil = "run 7\x1b]0;stolen\x07";
    let holder = world.holder(&["-k", "gpu", "-j", "1", "--note", evil]);
    let other = world.holder(&["-k", "other"]);
    let waiter = world.waiter("gpu", &[], &["true"]);
    let (holds, waits) = (holder.pid_text(), waiter.pid_text());
    for (lines, columns) in [(24, 80), (12, 40)] {
        let mut screen = Screen::start(&world, &["canal", "top"], lines, columns);
        screen.until("the list", |shown| shown.contains("> gpu") && shown.contains("  other"));
        screen.keys("/oth");
        screen.until("one is left", |shown| shown.contains("> other") && !shown.contains("gpu "));
        screen.keys(ESCAPE);
        screen.until("all are back", |shown| shown.contains("  gpu") && shown.contains("> other"));
        screen.keys("s");
        screen.until("another order", |shown| shown.contains("longest wait first"));
        screen.keys("\x1b[H");
        screen.until("the mark moves", |shown| shown.contains("> gpu"));
        screen.keys(ENTER);
        let shown = screen.until("its page", |shown| shown.contains(&format!("> holds  {holds}")));
        assert!(shown.contains("slots, 1 of 1 held, 1 waiting"), "{shown}");
        assert!(shown.contains("run 7?]0;stolen?") && shown.contains(&waits), "{shown}");
        screen.keys(DOWN);
        screen
            .until("the waiter has the mark", |shown| shown.contains(&format!("> #1     {waits}")));
        screen.keys("w");
        screen.until("the chain", |shown| {
            let text = shown.split_whitespace().collect::<Vec<_>>().join(" ");
            text.contains(&format!("pid {waits} `true`"))
                && text.contains(&format!("pid {holds} `cat`"))
        });
        screen.keys(ESCAPE);
        screen.until("its page again", |shown| shown.contains(&format!("> #1     {waits}")));
        screen.keys("h");
        screen.until("nothing has ended", |shown| shown.contains("no matching request has ended"));
        screen.keys("q");
        wait_until("it ends", || tops(&world).is_empty());
        let written = screen.written();
        assert!(memchr::memmem::find(written, b"\x1b]0;").is_none(), "it reached the terminal");
    }
    holder.finish();
    waiter.end().code(0);
    other.finish();
}

#[test]
fn what_is_done_is_asked_before() {
    let world = World::with_daemon();
    let _holder = world.holder(&["-k", "x", "-j", "1"]);
    let waiter = world.waiter("x", &[], &["true"]);
    let mut screen = Screen::start(&world, &["canal", "top", "x"], 24, 80);
    screen.until("its page", |shown| shown.contains("> holds  "));
    let sentence = |shown: &str| shown.split_whitespace().collect::<Vec<_>>().join(" ");
    screen.keys(DOWN);
    screen.until("the waiter has the mark", |shown| shown.contains("> #1 "));
    screen.keys("x");
    let ask = format!("send TERM to pid {} `true`", waiter.pid());
    screen.until("it is asked", |shown| sentence(shown).contains(&ask) && shown.ends_with("[y/N]"));
    screen.keys("n");
    screen.until("it is not done", |shown| shown.ends_with("nothing was done"));
    assert_eq!(world.key("x").waiting, 1);
    screen.keys("xy");
    screen.until("a yes before the question is none", |shown| shown.contains("? help"));
    assert_eq!(world.key("x").waiting, 1);
    screen.keys("x");
    screen.until("it is asked", |shown| sentence(shown).contains(&ask) && shown.ends_with("[y/N]"));
    screen.keys("y");
    screen.until("it is done", |shown| sentence(shown).contains("sent TERM to pid"));
    assert_eq!(waiter.end().signal, Some(Signal::SIGTERM as i32));
    for (keys, then, summary) in [
        ("p", ": paused; ", "slots, 1 of 1 held, paused\n"),
        ("p", ": not paused; ", "slots, 1 of 1 held\n"),
        ("z3\r", "size 3 (previously not stored); 1 held", "slots, 1 of 3 held, stored\n"),
    ] {
        screen.keys(keys);
        screen.until("it is asked", |shown| shown.ends_with("[y/N]"));
        screen.keys("y");
        screen.until(then, |shown| shown.contains(then) && shown.contains(summary));
    }
    assert_eq!(world.key("x").view.as_deref(), Some("3"));
    screen.keys("r");
    screen.until("it is asked", |shown| {
        sentence(shown).contains("break the hold on x by pid") && shown.ends_with("[y/N]")
    });
    screen.keys("y");
    screen.until("it is done", |shown| shown.contains("broke the hold on x by pid"));
    world.until_held("x", 0);
}

#[test]
fn it_writes_little_and_no_colours_where_none_are_wanted() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x", "--note", "n"]);
    for (variable, has_colours) in [("CANAL_TEST_NOTHING=1", true), ("NO_COLOR=1", false)] {
        let _paused = world.canal(["resize", "x", "--pause"]).end().code(0);
        let command = ["env", variable, "canal", "top"];
        let mut screen = Screen::start(&world, &command, 24, 80);
        let first = screen.until("it is shown", |shown| shown.contains("> x (paused)"));
        let whole = screen.written().len();
        assert!(whole < 1_000, "{whole} bytes for\n{first}");
        let yellow = memchr::memmem::find(screen.written(), b";33m").is_some();
        assert_eq!(yellow, has_colours, "{variable}");
        screen.until("the age is another one", |shown| shown != first);
        let more = screen.written().len() - whole;
        assert!(more < 200, "{more} bytes for some digits");
        screen.keys("q");
        wait_until("it ends", || tops(&world).is_empty());
    }
    holder.finish();
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let world = World::with_daemon();
    let ended = world.canal(["top"]).end().code(125);
    assert_eq!(
        ended.stderr,
        "canal: canal top needs a terminal on standard input and output\n\
         hint: use `canal status --watch --json` in programs\n"
    );
    for term in ["TERM=dumb", "TERM="] {
        let mut screen = Screen::start(&world, &["env", term, "canal", "top"], 24, 80);
        screen.until("it says why", |shown| shown.contains("that can move its cursor (TERM)"));
    }
}
