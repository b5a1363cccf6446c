//! Reboots of the machines of nodes. A node that keeps its state keeps its leases. A node without
//! its state grants nothing until no earlier lease can be left. In neither case do two commands
//! run.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::nodes::run::{Nodes, TTL};
use crate::world::World;
use crate::world::process::{
    Proc, alive, in_time, installed_or_skip, root_or_skip, signal, skipped, state, wait_until,
};

/// The files that are lost if the runtime directory is in memory.
pub(crate) const IN_MEMORY: &[&str] = &["journal.0", "journal.1"];

/// All files that a daemon keeps for the next one.
const ALL: &[&str] = &["journal.0", "journal.1", "leases.log", "state.json"];

/// Puts a node's daemon on a machine as if that had started some time ago: with another boot id,
/// and with a clock that is further ahead. The next daemon starts outside these namespaces, so it
/// finds a new boot. `false` if this machine permits no such namespaces.
fn put_before_a_reboot(node: &World) -> bool {
    let what = "machines of nodes that are started anew";
    if !root_or_skip(what) || !installed_or_skip("unshare", what) {
        return false;
    }
    let script = "echo an-earlier-start >boot && \
                  mount --bind boot /proc/sys/kernel/random/boot_id && exec canal status";
    let within = ["-m", "-T", "--boottime", "1000000", "-f", "sh", "-c"];
    node.kill_daemon();
    let tried = node.program("unshare", within.into_iter().chain([script])).end();
    if tried.code != Some(0) {
        skipped(&format!("namespaces are not permitted here: {what}: {}", tried.stderr.trim()));
    }
    tried.code == Some(0)
}

/// Three nodes whose machines can reboot; `None` if this machine does not permit that.
fn nodes() -> Option<Nodes> {
    let nodes = Nodes::new();
    nodes.nodes.iter().all(put_before_a_reboot).then_some(nodes)
}

/// Reboots the machine of a node, as far as its daemon can tell, without these files.
pub(crate) fn reboot(node: &World, without: &[&str]) {
    let before = node.daemon_pid();
    // It cannot write another file.
    signal(before, Signal::SIGSTOP);
    wait_until("the daemon is stopped", || state(before) == Some('T'));
    for file in without {
        // The file of the leases exists only after the first lease.
        let _ = fs::remove_file(node.runtime().join(file));
    }
    signal(before, Signal::SIGKILL);
    wait_until("the daemon is dead", || !alive(before));
    node.status();
}

/// Starts a command that ends with its standard input, and one that waits for it and notes its
/// token. Returns both, the process of the first, and its token.
fn start(nodes: &Nodes, ttl: Duration, require: &str) -> (Proc, Proc, i32, u64) {
    let ttl = format!("{}s", ttl.as_secs());
    let canal = |script: &str| {
        let words = ["run", "--on", "@all", "--ttl", &ttl, "--require", require, "-k", "x", "--"];
        nodes.here.canal(words.into_iter().chain(["sh", "-c", script]))
    };
    let script = "echo $$ $CANAL_TOKEN > started.tmp; mv started.tmp started; exec cat";
    let run = canal(script).stdin(Stdio::piped()).spawn();
    wait_until("the command runs", || {
        assert!(alive(run.pid()), "{}", run.stderr());
        !nodes.here.read("started").is_empty()
    });
    let started = nodes.here.read("started");
    let (pid, token) = started.trim().split_once(' ').unwrap();
    wait_until("all hold it", || nodes.held() == [1, 1, 1]);
    let next = canal("echo $CANAL_TOKEN > next").spawn();
    wait_until("another one waits", || nodes.nodes.iter().any(|node| node.key("x").waiting > 0));
    (run, next, pid.parse().unwrap(), token.parse().unwrap())
}

/// Watches for longer than a lease lasts that the command runs and the next one does not. `None` if
/// the command was ended.
fn nobody_else_runs(nodes: &Nodes, command: i32, ttl: Duration) -> Option<()> {
    let until = Instant::now() + ttl + ttl / 2;
    while Instant::now() < until {
        let next_ran = !nodes.here.read("next").is_empty();
        if !alive(command) {
            return None;
        }
        assert!(!next_ran, "two commands ran at once");
        std::thread::sleep(Duration::from_millis(100));
    }
    Some(())
}

fn next_token(nodes: &Nodes, next: Proc) -> u64 {
    next.end().code(0);
    nodes.here.read("next").trim().parse().unwrap()
}

#[test]
fn a_node_keeps_its_leases_with_its_state() {
    in_time(TTL, |ttl| {
        let Some(nodes) = nodes() else { return Some(()) };
        let plain = nodes.nodes[1].canal(["run", "-k", "plain", "--", "sleep", "1000"]).spawn();
        nodes.nodes[1].until_held("plain", 1);
        let (run, next, command, token) = start(&nodes, ttl, "all");
        reboot(&nodes.nodes[1], IN_MEMORY);
        // Processes of an earlier boot are gone; leases are not.
        assert_eq!(nodes.nodes[1].held("plain"), 0);
        assert_eq!(nodes.nodes[1].held("x"), 1);
        nobody_else_runs(&nodes, command, ttl)?;
        assert_eq!(nodes.held(), [1, 1, 1]);
        run.finish().code(0);
        assert!(next_token(&nodes, next) > token);
        nodes.until_free();
        signal(plain.pid(), Signal::SIGKILL);
        Some(())
    });
}

#[test]
fn a_majority_outlives_a_node_that_loses_its_state() {
    in_time(TTL, |ttl| {
        let Some(nodes) = nodes() else { return Some(()) };
        let (run, next, command, token) = start(&nodes, ttl, "majority");
        reboot(&nodes.nodes[1], ALL);
        nobody_else_runs(&nodes, command, ttl)?;
        assert_eq!(nodes.held(), [1, 0, 1]);
        run.finish().code(0);
        assert!(next_token(&nodes, next) > token);
        nodes.until_free();
        Some(())
    });
}

#[test]
fn a_command_over_all_nodes_ends_in_time_when_one_loses_its_state() {
    let Some(nodes) = nodes() else { return };
    let (run, next, command, _) = start(&nodes, TTL, "all");
    reboot(&nodes.nodes[1], ALL);
    wait_until("canal ends the command", || !alive(command));
    let ended = run.end().code(122);
    assert!(ended.stderr.contains("lost `x`"), "{}", ended.stderr);
    // The node cannot know its earlier grants: it grants nothing while an earlier lease may last.
    wait_until("the next one is told why it waits", || {
        next.stderr().contains(" waiting for 1 new node (b): first grant in ")
    });
    signal(next.pid(), Signal::SIGTERM);
    assert_eq!(next.end().signal, Some(Signal::SIGTERM as i32));
    assert_eq!(nodes.here.read("next"), "");
    nodes.until_free();
}
