//! `canal leader --watch` prints a line for each change.

use std::fs;

use serde_json::Value;

use crate::backend::{self, over_engines};
use crate::lease::Lease;
use crate::world::World;
use crate::world::process::{Proc, wait_until};

over_engines! {
    "the leader is on another host":
        a_watcher_says_each_change_once_through_kills_and_a_restart_of_the_daemon;
}

/// A watcher of the leader of a key.
pub(super) struct Watcher(pub(super) Proc);

impl Watcher {
    /// Starts it, and waits until it has printed the leader.
    #[track_caller]
    pub(super) fn start(world: &World, key: &str) -> Self {
        let watcher = Self(world.canal(["leader", "--watch", key]).spawn());
        wait_until("the watcher has said something", || !watcher.lines().is_empty());
        watcher
    }

    /// The lines so far.
    pub(super) fn lines(&self) -> Vec<Value> {
        let text = self.0.stdout();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The notes of the leaders so far, `-` where there was none. Leaves out lines about a slow
    /// engine.
    #[track_caller]
    pub(super) fn leaders(&self) -> Vec<String> {
        let said = |line: &Value| (line["leader"]["token"].clone(), line["leader"]["note"].clone());
        let lines = self.lines();
        for pair in lines.windows(2) {
            let is_news = said(&pair[0]) != said(&pair[1]) || pair[0]["stale"] != pair[1]["stale"];
            assert!(is_news, "said twice: {pair:?}");
        }
        let sure = lines.iter().filter(|line| line["stale"] == false);
        let mut leaders: Vec<_> = sure.map(said).collect();
        if backend::is_engine() {
            leaders.dedup();
        }
        let name = |note: &Value| note.as_str().map_or_else(|| "-".to_owned(), str::to_owned);
        leaders.iter().map(|(_, note)| name(note)).collect()
    }

    /// Waits until the last leader that it named has this note.
    #[track_caller]
    pub(super) fn until(&self, note: &str) {
        wait_until(&format!("the leader is {note}"), || {
            self.leaders().last().is_some_and(|last| last == note)
        });
    }
}

#[test]
fn a_watcher_says_each_change_once_through_kills_and_a_restart_of_the_daemon() {
    let world = World::with_daemon();
    let watcher = Watcher::start(&world, "x");
    watcher.until("-");
    let first = world.holder(&["-k", "x", "--note", "a"]);
    watcher.until("a");
    let second = world.waiter("x", &["--note", "b"], &["sleep", "600"]);
    let third = world.waiter("x", &["--note", "c"], &["sleep", "600"]);
    first.kill();
    watcher.until("b");
    world.kill_daemon();
    world.daemons_return();
    // Before that, the key would have no leader between the two.
    wait_until("the third waits again", || {
        let waiters = world.key("x").waiters;
        waiters.len() == 1 && waiters[0].reason == "1 of 1 slots held"
    });
    second.kill();
    watcher.until("c");
    third.kill();
    watcher.until("-");
    let last = world.holder(&["-k", "x", "--note", "d"]);
    watcher.until("d");
    assert_eq!(watcher.leaders(), ["-", "a", "b", "c", "-", "d"]);
    let tokens: Vec<u64> =
        watcher.lines().iter().filter_map(|line| line["leader"]["token"].as_u64()).collect();
    assert!(tokens.is_sorted(), "{tokens:?}");
    last.finish();
    watcher.until("-");
    assert_eq!(watcher.0.stderr(), "");
}

/// How many sockets a process has open.
fn sockets(pid: i32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let is_socket = |link: &std::path::PathBuf| link.to_string_lossy().starts_with("socket:");
    open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).filter(is_socket).count()
}

#[test]
fn a_watcher_uses_one_connection_and_other_locks_do_not_make_it_speak() {
    let world = World::with_daemon();
    let watcher = Watcher::start(&world, "x");
    let leader = world.holder(&["-k", "x", "--note", "a"]);
    watcher.until("a");
    for _ in 0..5 {
        world.canal(["run", "-k", "x/below", "--", "true"]).end().code(0);
        world.canal(["run", "-q", "-n", "-k", "x", "--", "true"]).end().code(75);
    }
    assert_eq!(sockets(watcher.0.pid()), 1);
    leader.finish();
    watcher.until("-");
    assert_eq!(watcher.leaders(), ["-", "a", "-"]);
}

#[test]
fn another_note_of_the_same_leader_is_a_change() {
    let world = World::with_daemon();
    let watcher = Watcher::start(&world, "x");
    let lease = Lease::take(&world, "10m", &["-k", "x", "--note", "a"]);
    watcher.until("a");
    lease.renew(&world).code(0);
    let renew = world.canal(["renew", "--note", "b"]);
    renew.env("CANAL_HANDLE", &lease.handle).end().code(0);
    watcher.until("b");
    lease.release(&world).code(0);
    watcher.until("-");
    assert_eq!(watcher.leaders(), ["-", "a", "b", "-"]);
}

#[test]
fn a_watch_ends_when_the_key_becomes_one_that_several_can_hold() {
    let world = World::with_daemon();
    let watcher = Watcher::start(&world, "x");
    let slots = world.holder(&["-k", "x=2"]);
    let ended = watcher.0.end().code(125);
    assert!(ended.stderr.starts_with("canal: `x` has 2 slots: "), "{ended:?}");
    slots.finish();
}

#[test]
fn a_watcher_whose_reader_is_gone_ends_well() {
    let world = World::with_daemon();
    let script =
        "{ canal leader --watch x; echo $? >code; } | { head -n 1; exec <&-; echo >gone; }";
    let watcher = world.sh(script).spawn();
    wait_until("the reader has what it wanted", || world.path("work/gone").exists());
    assert!(watcher.stdout().ends_with('\n'));
    // The watcher notices the loss of its reader when it writes the next line.
    let leader = world.holder(&["-k", "x"]);
    watcher.end().code(0);
    assert_eq!(world.read("code"), "0\n");
    leader.finish();
}
