//! `docs/screens.md`: what terminals show, as text.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use nix::unistd::{User, geteuid};

use crate::screen::{Screen, deploy};
use crate::world::World;
use crate::world::process::installed_or_skip;

const HEAD: &str = "\
# What a terminal shows

Made by `UPDATE=1 cargo test --test screens` from real pseudo-terminals: the text is what stands on the
screen. Names of users, numbers of processes and lengths of time are replaced by those of the manual.
";

/// The sizes of the terminals, in lines and columns.
const SIZES: [(u16, u16); 2] = [(24, 80), (12, 40)];

/// A scene on a terminal: what it is, the command, and what the screen shows while it waits.
struct Scene {
    title: &'static str,
    words: &'static str,
    command: &'static str,
    waits: &'static str,
}

const SCENES: [Scene; 2] = [
    Scene {
        title: "One waiter",
        words: "alice deploys. The line says whom a command waits for, and is gone when it starts.",
        command: "canal run -k deploy -- echo done",
        waits: "waiting for deploy, next in line",
    },
    Scene {
        title: "Four waiters below `make -j4`",
        words: "Each of four recipes is `canal run -k deploy -- echo done`. One of them draws the line.",
        command: "make -s -j4 one two three four",
        waits: "waiting for deploy (4 here)",
    },
];

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
            write!(page, "\n{columns}×{lines}, while it waits and afterwards:\n").unwrap();
            write!(page, "\n```\n{before}\n```\n\n```\n{after}\n```\n").unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/screens.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    for (now, then) in page.lines().zip(kept.lines()) {
        assert_eq!(without_place(now), without_place(then), "UPDATE=1 accepts it");
    }
    assert_eq!(page.lines().count(), kept.lines().count(), "UPDATE=1 accepts it");
}

/// What the screen shows while the command waits, and when the lock was free.
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

/// With the names and numbers of the manual.
fn of_the_manual(shown: &str, pid: &str) -> String {
    let me = User::from_uid(geteuid()).unwrap().map_or_else(|| geteuid().to_string(), |me| me.name);
    let shown = shown.replace(&format!(" by {me}"), " by alice").replace(pid, "812");
    let Some((before, rest)) = shown.split_once("held ") else { return shown };
    let Some((_, after)) = rest.split_once(' ') else { return shown };
    format!("{before}held 3m {after}")
}

/// Which of four is the one that draws depends on how fast each of them is.
fn without_place(line: &str) -> String {
    let Some((before, after)) = line.split_once(" in line") else { return line.to_owned() };
    let before = before.rsplit_once(", ").map_or(before, |(before, _)| before);
    format!("{before}, … in line{after}")
}
