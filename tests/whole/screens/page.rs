//! `docs/screens.md`: the content of terminals as text.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use nix::sys::utsname::uname;
use nix::unistd::{User, geteuid};

use super::top;
use crate::screen::{Screen, deploy};
use crate::world::executable::executable;
use crate::world::process::{Proc, installed_or_skip};
use crate::world::{World, canal};

const HEAD: &str = "\
# Terminal screens

`UPDATE=1 cargo test --test runner screens::` generates this page from real pseudo-terminals. It
replaces user names, process numbers and durations with those of the manual.
";

/// The sizes of the terminals, in lines and columns.
const SIZES: [(u16, u16); 2] = [(24, 80), (12, 40)];

/// A scene on a terminal: its title, the command, and the screen while it waits.
struct Scene {
    title: &'static str,
    words: &'static str,
    command: &'static str,
    waits: &'static str,
}

const SCENES: [Scene; 2] = [
    Scene {
        title: "One waiter",
        words: "alice is deploying. The line names the holder, and canal erases the line when the command starts.",
        command: "canal run -k deploy -- echo done",
        waits: "waiting for deploy, next in line",
    },
    Scene {
        title: "Four waiters below `make -j4`",
        words: "Each of four recipes is `canal run -k deploy -- echo done`. Only one canal draws the line.",
        command: "make -s -j4 one two three four",
        waits: "waiting for deploy (4 on this terminal)",
    },
];

/// The sections whose text differs from machine to machine, so the test does not compare them.
const OF_THIS_MACHINE: [&str; 4] =
    ["`canal status --watch`", "A deadlock", "`canal doctor`", "`canal top`"];

#[test]
fn the_page_shows_what_a_terminal_shows() {
    if !installed_or_skip("bash", "an interactive shell") || !installed_or_skip("make", "make -j4")
    {
        return;
    }
    let mut page = HEAD.to_owned();
    for Scene { title, words, command, waits } in SCENES {
        write!(page, "\n## {title}\n\n{words}\n").unwrap();
        for (lines, columns) in SIZES {
            let [before, after] = play(command, waits, lines, columns);
            write!(page, "\n{columns}×{lines}, while it is waiting, and afterwards:\n").unwrap();
            write!(page, "\n```\n{before}\n```\n\n```\n{after}\n```\n").unwrap();
        }
    }
    let [status_title, deadlock_title, doctor_title, top_title] = OF_THIS_MACHINE;
    let words =
        "Without locks, with one, and with 200. The last line counts the keys that do not fit.";
    write!(page, "\n## {status_title}\n\n{words}\n").unwrap();
    for (lines, columns) in SIZES {
        write!(page, "\n{columns}×{lines}:\n").unwrap();
        for keys in [0, 1, 200] {
            let shown = status(keys, lines, columns);
            write!(page, "\n```\n{shown}\n```\n").unwrap();
        }
    }
    let words = "Each of two scripts holds a lock and asks for the other one's. canal refuses the\nsession \
                 that began last (75).";
    write!(page, "\n## {deadlock_title}\n\n{words}\n").unwrap();
    for (lines, columns) in SIZES {
        let shown = deadlock(lines, columns);
        write!(page, "\n{columns}×{lines}:\n\n```\n{shown}\n```\n").unwrap();
    }
    let words = "On a narrow terminal, each message is below its subject. The end of the report:";
    write!(page, "\n## {doctor_title}\n\n{words}\n").unwrap();
    for (lines, columns) in SIZES {
        let shown = doctor(lines, columns);
        write!(page, "\n{columns}×{lines}:\n\n```\n{shown}\n```\n").unwrap();
    }
    let words = "The list of keys, the page of a key with its waiter selected, the chain of waits, and\nthe \
                 question before canal ends a process:";
    write!(page, "\n## {top_title}\n\n{words}\n").unwrap();
    for (lines, columns) in SIZES {
        write!(page, "\n{columns}×{lines}:\n").unwrap();
        for shown in top::screens(lines, columns) {
            write!(page, "\n```\n{shown}\n```\n").unwrap();
        }
    }
    assert!(!page.contains(env!("CARGO_MANIFEST_DIR")), "a path of this machine:\n{page}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/screens.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    let (now, then) = (sections(&page), sections(&kept));
    let titles = |of: &[(&str, &str)]| of.iter().map(|it| it.0.to_owned()).collect::<Vec<_>>();
    assert_eq!(titles(&now), titles(&then), "UPDATE=1 accepts it");
    for ((title, now), (_, then)) in now.into_iter().zip(then) {
        if OF_THIS_MACHINE.contains(&title) {
            continue;
        }
        for (now, then) in now.lines().zip(then.lines()) {
            assert_eq!(without_place(now), without_place(then), "UPDATE=1 accepts it");
        }
        assert_eq!(now.lines().count(), then.lines().count(), "UPDATE=1 accepts it");
    }
}

/// The title and text of each section.
fn sections(page: &str) -> Vec<(&str, &str)> {
    page.split("\n## ").map(|section| section.split_once('\n').unwrap_or((section, ""))).collect()
}

/// The screen of a command that canal refuses because of a deadlock.
fn deadlock(lines: u16, columns: u16) -> String {
    let world = World::with_daemon();
    let script = world.path("work/swap.sh");
    let text =
        "#!/bin/sh\nuntil [ -e \"go.$1\" ]; do sleep 0.01; done\ncanal run -k \"$1\" -- true\n";
    executable(&script, text);
    let go = |key: &str| fs::write(world.path(&format!("work/go.{key}")), "").unwrap();
    let other = world.canal(["run", "-k", "right", "--", "./swap.sh", "left"]).spawn();
    world.until_held("right", 1);
    let mut screen = Screen::with_shell(&world, lines, columns);
    screen.keys("canal run -k left -- ./swap.sh right\n");
    world.until_held("left", 1);
    go("left");
    world.until_waiting("left", 1);
    go("right");
    let shown = screen.until_prompt();
    assert!(shown.contains("./swap.sh right") && shown.contains("which encloses"), "{shown}");
    other.end().code(0);
    numbered(&shown)
}

/// Replaces the pids with others of the same length, so that lines end where they did.
fn numbered(shown: &str) -> String {
    let mut numbers: Vec<&str> = Vec::new();
    for after in shown.split("pid ").skip(1) {
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        if !numbers.contains(&&after[..end]) {
            numbers.push(&after[..end]);
        }
    }
    let mut text = shown.to_owned();
    for (at, number) in numbers.into_iter().enumerate() {
        let digits = format!("81{at}27460").chars().take(number.len()).collect::<String>();
        text = text.replace(&format!("pid {number}"), &format!("pid {digits}"));
    }
    text
}

/// The screen of `canal status --watch` while a command holds `keys` keys.
fn status(keys: usize, lines: u16, columns: u16) -> String {
    let world = World::with_daemon();
    let keys: Vec<String> = (1..=keys).map(|n| format!("team/job-{n:03}")).collect();
    // A request names at most 64 keys.
    let holder = |keys: &[String]| {
        let args: Vec<&str> = keys.iter().flat_map(|key| ["-k", key]).collect();
        world.holder(&args)
    };
    let holders: Vec<Proc> = keys.chunks(50).map(holder).collect();
    let mut screen = Screen::start(&world, &["canal", "status", "--watch"], lines, columns);
    let said = match keys.len() {
        0 => "no locks".to_owned(),
        1 => "1 key,".to_owned(),
        many => format!("{many} keys,"),
    };
    let shown = screen.until("the locks", |shown| shown.contains(&said));
    for line in shown.lines() {
        assert!(line.chars().count() <= usize::from(columns), "{line}");
    }
    assert!(shown.lines().count() <= usize::from(lines), "{shown}");
    assert_eq!(keys.len() == 200, shown.contains("more"), "{shown}");
    holders.into_iter().for_each(|holder| drop(holder.finish()));
    shown
}

/// The screen of `canal doctor` at its end.
fn doctor(lines: u16, columns: u16) -> String {
    let world = World::with_daemon();
    let mut screen = Screen::with_shell(&world, lines, columns);
    screen.keys("canal doctor\n");
    let shown = screen.until_prompt();
    for line in shown.lines() {
        let room = usize::from(columns);
        assert!(line.chars().count() <= room && !line.ends_with("..."), "{line}");
    }
    assert!(shown.contains("ok       journal"), "{shown}");
    assert_eq!(shown.contains("ok       journal        "), columns == 80, "{shown}");
    let shown = shown.replace(&world.runtime().display().to_string(), "/tmp/canal-1000");
    let shown = shown.replace(&canal().display().to_string(), "/usr/local/bin/canal");
    let kernel = uname().unwrap().release().to_string_lossy().into_owned();
    numbered(&shown.replace(&kernel, "6.12.0"))
}

fn me() -> String {
    User::from_uid(geteuid()).unwrap().map_or_else(|| geteuid().to_string(), |me| me.name)
}

/// The screen while the command waits, and after it got the lock.
fn play(command: &str, waits: &str, lines: u16, columns: u16) -> [String; 2] {
    let world = World::with_daemon();
    let recipes = "one two three four:\n\tcanal run -k deploy -- echo done\n";
    fs::write(world.path("work/Makefile"), recipes).unwrap();
    let holder = deploy(&world, "deploy");
    let mut screen = Screen::with_shell(&world, lines, columns);
    screen.keys(&format!("{command}\n"));
    let before = screen.until("it waits", |shown| shown.contains(waits));
    assert_eq!(before.lines().count(), 2, "the command, and one line:\n{before}");
    let pid = holder.pid_text();
    holder.finish();
    let after = screen.until_prompt();
    assert!(!after.contains("waiting"), "{after}");
    [before, after].map(|shown| of_the_manual(&shown, &pid))
}

/// Replaces names and numbers with those of the manual.
fn of_the_manual(shown: &str, pid: &str) -> String {
    let me = me();
    let shown = shown.replace(&format!(" by {me}"), " by alice").replace(pid, "812");
    let Some((before, rest)) = shown.split_once("held ") else { return shown };
    let Some((_, after)) = rest.split_once(' ') else { return shown };
    format!("{before}held 3m {after}")
}

/// Drops the place in the queue: which of four waiters draws depends on their speed.
fn without_place(line: &str) -> String {
    let Some((before, after)) = line.split_once(" in line") else { return line.to_owned() };
    let before = before.rsplit_once(", ").map_or(before, |(before, _)| before);
    format!("{before}, … in line{after}")
}
