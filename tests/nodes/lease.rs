//! `canal acquire --ttl --on`: a lease over nodes, kept and released by its handle.

use std::fs;
use std::io::{PipeReader, PipeWriter, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use canal::protocol::HolderInfo;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::nodes::run::{NAMES, Nodes, PAST_TTL, coordinator};
use crate::world::canal;
use crate::world::process::{Cmd, Proc, alive, root_or_skip, signal, wait_until};

/// The output of `canal acquire`.
struct Lease {
    handle: String,
    token: u64,
}

impl Lease {
    fn of(printed: &str) -> Self {
        let value = |name: &str| {
            let line = printed.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
            line.unwrap_or_else(|| panic!("no {name}: {printed}")).to_owned()
        };
        Self { handle: value("CANAL_HANDLE"), token: value("CANAL_TOKEN").parse().unwrap() }
    }
}

impl Nodes {
    /// Nodes that all grant already.
    fn ready() -> Self {
        let nodes = Self::new();
        nodes.run(&["--", "true"]).end().code(0);
        nodes
    }

    /// `canal acquire --on @all --ttl 10s x ARGS`.
    fn acquire(&self, args: &[&str]) -> Cmd<'_> {
        self.here.canal(["acquire", "--on", "@all", "--ttl", "10s", "x"].iter().chain(args))
    }

    fn lease(&self, args: &[&str]) -> Lease {
        Lease::of(&self.acquire(args).end().code(0).stdout)
    }

    /// A lease that does not end while a test waits for a node that is away.
    fn long_lease(&self, args: &[&str]) -> Lease {
        let words = ["acquire", "--on", "@all", "--ttl", "1h", "x"];
        Lease::of(&self.here.canal(words.iter().chain(args)).end().code(0).stdout)
    }

    /// `canal VERB ARGS` with the handle in the environment.
    fn with(&self, lease: &Lease, verb: &str, args: &[&str]) -> Cmd<'_> {
        self.here.canal([verb].iter().chain(args)).env("CANAL_HANDLE", &lease.handle)
    }

    fn waiting(&self) -> u64 {
        self.nodes.iter().map(|node| node.key("x").waiting).sum()
    }

    /// Whether each node has a confirmed part, so that its client need not stay.
    fn are_confirmed(&self) -> bool {
        let mut holders = self.nodes.iter().map(|node| node.key("x").holders);
        let of = |holder: &HolderInfo| holder.over_nodes.as_ref().is_some_and(|it| !it.collecting);
        holders.all(|holders| holders.first().is_some_and(of))
    }

    /// How the last lease at each node ended.
    fn reasons(&self) -> Vec<String> {
        let last =
            |ended: &Value| ended["ended"][0]["reason"].as_str().unwrap_or("none").to_owned();
        let ended = |args: [&str; 3]| {
            self.nodes.iter().map(|node| last(&node.canal(args).end().code(0).json())).collect()
        };
        ended(["status", "--ended", "--json"])
    }
}

/// The state of each node in a report, in the order of [`NAMES`].
fn states(report: &Value) -> Vec<String> {
    let nodes = report["nodes"].as_array().unwrap();
    let state = |name: &str| {
        let node = nodes.iter().find(|node| node["name"] == name).unwrap();
        node["state"].as_str().unwrap().to_owned()
    };
    NAMES.iter().map(|name| state(name)).collect()
}

/// A full pipe.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while nix::unistd::write(&writer, &[b'\n'; 1024]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

/// A client that has a lease and cannot print its handle.
fn stuck(nodes: &Nodes) -> (Proc, PipeReader) {
    let (reader, writer) = full_pipe();
    let client = nodes.acquire(&[]).stdout(writer).spawn();
    wait_until("the lease is confirmed", || nodes.are_confirmed());
    (client, reader)
}

#[test]
fn a_lease_is_kept_and_given_back_by_its_handle() {
    let nodes = Nodes::ready();
    let mut before = 0;
    for require in ["all", "majority", "any"] {
        let lease = nodes.lease(&["--require", require]);
        assert!(lease.token > before || require == "any", "{} after {before}", lease.token);
        before = lease.token;
        let expected: usize = if require == "any" { 1 } else { 3 };
        match require {
            "any" => wait_until("surplus is given back", || nodes.held().iter().sum::<u64>() == 1),
            // A majority takes all nodes that are free.
            _ => assert_eq!(nodes.held(), [1, 1, 1], "{require}"),
        }
        let renewed = nodes.with(&lease, "renew", &["--json"]).end().code(0).json();
        assert_eq!(renewed["keys"], serde_json::json!(["x"]));
        assert_eq!(renewed["token"], lease.token);
        let left = renewed["lease"]["left_ms"].as_u64().unwrap();
        assert!(left > 0 && left < 10_000, "{renewed}");
        let at = renewed["nodes"].as_array().unwrap();
        assert_eq!(at.len(), expected, "{renewed}");
        assert!(at.iter().all(|node| node["state"] == "renewed"), "{renewed}");
        assert!(!renewed.to_string().contains(&lease.handle));
        nodes.acquire(&["-n", "--require", require]).end().code(match require {
            "any" => 0,
            _ => 75,
        });
        let released = nodes.with(&lease, "release", &["--json"]).end().code(0).json();
        assert_eq!(released["released"].as_array().unwrap().len(), expected, "{released}");
        if require != "any" {
            assert_eq!(nodes.held(), [0, 0, 0]);
        }
        for verb in ["renew", "release"] {
            let lost = nodes.with(&lease, verb, &["--json"]).end().code(122);
            assert!(lost.stderr.contains("the lease is lost: "), "{}", lost.stderr);
            assert_eq!(lost.json()["lost"], "released");
        }
    }
    // Waits for the lease of `any`, which was not released.
    nodes.until_free();
}

#[test]
fn a_lease_that_nobody_renews_ends_everywhere() {
    let nodes = Nodes::ready();
    let lease = nodes.lease(&[]);
    let refused = nodes.acquire(&["-n", "--json"]).end().code(75);
    assert_eq!(refused.json()["refused"], "full");
    nodes.until_free();
    let lost = nodes.with(&lease, "renew", &[]).end().code(122);
    assert!(
        lost.stderr.contains("it is no longer held on 3 of its 3 nodes, and it needs 3"),
        "{}",
        lost.stderr
    );
    for name in NAMES {
        let said = format!("{name}: the lease on `x`");
        assert!(lost.stderr.contains(&said), "{}", lost.stderr);
    }
    assert!(lost.stderr.contains("expired"), "{}", lost.stderr);
}

#[test]
fn a_renewal_with_a_longer_ttl_counts_at_each_node_and_for_each_later_renewal() {
    let nodes = Nodes::ready();
    let lease = nodes.lease(&[]);
    let ttls = || nodes.nodes.iter().map(|node| node.key("x").holders[0].lease.clone().unwrap());
    let renewed = nodes.with(&lease, "renew", &["--json", "--ttl", "10m"]).end().code(0).json();
    assert_eq!(renewed["lease"]["ttl_ms"], 600_000, "{renewed}");
    assert!(ttls().all(|lease| lease.ttl_ms == 600_000));
    // Another process may count on the longer TTL.
    let shorter = nodes.with(&lease, "renew", &["--json", "--ttl", "1m"]).end().code(0).json();
    assert_eq!(shorter["lease"]["ttl_ms"], 600_000, "{shorter}");
    let kept = nodes.with(&lease, "renew", &["--ttl", "1m"]).end().code(0).stderr;
    assert!(kept.contains(" keeps the TTL of 10m00s: another process may rely on it"), "{kept}");
    // The handle still contains 10s, which does not count.
    let later = nodes.with(&lease, "renew", &["--json"]).end().code(0).json();
    assert_eq!(later["lease"]["ttl_ms"], 600_000, "{later}");
    assert!(later["lease"]["left_ms"].as_u64().unwrap() < 600_000, "{later}");
    let too_long = nodes.with(&lease, "renew", &["--ttl", "2h"]).end().code(125);
    assert!(too_long.stderr.contains("can be at most 1h00m here"), "{too_long:?}");
    assert!(!too_long.stderr.contains("away"), "they answered: {too_long:?}");
    assert!(too_long.stderr.contains("hint: see `longest_ttl`"), "{too_long:?}");
    let too_short = nodes.with(&lease, "renew", &["--ttl", "5s"]).end().code(125);
    assert!(too_short.stderr.contains("a TTL of 5s is too short"), "{too_short:?}");
    assert!(ttls().all(|lease| lease.ttl_ms == 600_000));
    nodes.with(&lease, "release", &[]).end().code(0);
    nodes.until_free();
}

#[test]
fn a_lease_is_kept_as_long_as_a_process_lives() {
    let nodes = Nodes::ready();
    let lease = nodes.lease(&["--require", "majority"]);
    let process = nodes.here.program("sleep", ["1000"]).spawn();
    let keeper = nodes.with(&lease, "renew", &["--while", &process.pid_text()]).spawn();
    let away = nodes.nodes[2].daemon_pid();
    signal(away, Signal::SIGSTOP);
    let until = Instant::now() + PAST_TTL;
    while Instant::now() < until {
        assert!(nodes.nodes[..2].iter().all(|node| node.held("x") == 1));
        thread::sleep(Duration::from_millis(200));
    }
    wait_until("it is said that one node is away", || {
        keeper.stderr().contains("c has not answered since ")
    });
    signal(away, Signal::SIGCONT);
    process.kill();
    keeper.end().code(0);
    // The lease is not released.
    assert_eq!(nodes.held()[..2], [1, 1]);
    nodes.with(&lease, "release", &[]).end().code(0);
    nodes.until_free();
}

#[test]
fn keeping_a_lease_that_too_few_nodes_hold_ends() {
    let nodes = Nodes::ready();
    let lease = nodes.lease(&[]);
    let process = nodes.here.program("sleep", ["1000"]).spawn();
    let args = ["--while", &process.pid_text(), "-v"];
    let keeper = nodes.with(&lease, "renew", &args).spawn();
    wait_until("it was renewed", || keeper.stderr().contains("renewed x until "));
    let away = nodes.nodes[1].daemon_pid();
    signal(away, Signal::SIGSTOP);
    let lost = keeper.end().code(122);
    assert!(lost.stderr.contains("b has not answered since "), "{}", lost.stderr);
    assert!(lost.stderr.contains("the lease will be lost at "), "{}", lost.stderr);
    assert!(lost.stderr.contains("the lease counts as lost: "), "{}", lost.stderr);
    // The rest of the lease is released.
    assert_eq!([nodes.nodes[0].held("x"), nodes.nodes[2].held("x")], [0, 0]);
    signal(away, Signal::SIGCONT);
    nodes.until_free();
}

#[test]
fn a_node_that_is_away_is_named_and_costs_a_majority_nothing() {
    let nodes = Nodes::ready();
    let lease = nodes.long_lease(&["--require", "majority"]);
    assert_eq!(nodes.held(), [1, 1, 1]);
    let away = nodes.nodes[1].daemon_pid();
    signal(away, Signal::SIGSTOP);
    let renewed = nodes.with(&lease, "renew", &["--json"]).end().code(0);
    assert!(renewed.stderr.contains("canal: b is unreachable: "), "{}", renewed.stderr);
    assert_eq!(states(&renewed.json()), ["renewed", "away", "renewed"]);
    let released = nodes.with(&lease, "release", &["--json"]).end().code(0);
    assert!(released.stderr.contains("canal: b is unreachable: "), "{}", released.stderr);
    assert!(released.stderr.contains("ends on them when its TTL expires"), "{}", released.stderr);
    assert_eq!(states(&released.json()), ["released", "away", "released"]);
    assert_eq!([nodes.nodes[0].held("x"), nodes.nodes[2].held("x")], [0, 0]);
    signal(away, Signal::SIGCONT);
    // Releases the part at the node that was away.
    nodes.with(&lease, "release", &[]).end().code(122);
    nodes.until_free();
}

#[test]
fn without_enough_nodes_a_renewal_fails_and_names_them() {
    let nodes = Nodes::ready();
    let lease = nodes.long_lease(&[]);
    let away = nodes.nodes[1].daemon_pid();
    signal(away, Signal::SIGSTOP);
    let failed = nodes.with(&lease, "renew", &["--json"]).end().code(125);
    assert_eq!(failed.stdout, "");
    assert!(failed.stderr.contains("canal: b is unreachable: "), "{}", failed.stderr);
    assert!(failed.stderr.contains("hint: "), "{}", failed.stderr);
    // No part was released.
    assert_eq!([nodes.nodes[0].held("x"), nodes.nodes[2].held("x")], [1, 1]);
    signal(away, Signal::SIGCONT);
    nodes.with(&lease, "release", &[]).end().code(0);
    nodes.until_free();
}

#[test]
fn a_lost_majority_is_said_and_the_rest_of_it_is_given_back() {
    let nodes = Nodes::ready();
    for verb in ["renew", "release"] {
        let lease = nodes.long_lease(&["--require", "majority"]);
        assert_eq!(nodes.held(), [1, 1, 1]);
        for node in &nodes.nodes[..2] {
            let token = node.key("x").holders[0].token.to_string();
            node.canal(["release", "--force", "--token", &token]).end().code(0);
        }
        let lost = nodes.with(&lease, verb, &["--json"]).end().code(122);
        let said = "it is no longer held on 2 of its 3 nodes, and it needs 2";
        assert!(lost.stderr.contains(said), "{}", lost.stderr);
        assert!(lost.stderr.contains("broken by force"), "{}", lost.stderr);
        assert_eq!(lost.json()["lost"], "forced");
        assert_eq!(nodes.held(), [0, 0, 0], "{verb}");
    }
}

#[test]
fn one_node_that_lost_its_part_is_named_and_not_missed() {
    let nodes = Nodes::ready();
    let lease = nodes.long_lease(&["--require", "majority"]);
    let token = nodes.nodes[0].key("x").holders[0].token.to_string();
    nodes.nodes[0].canal(["release", "--force", "--token", &token]).end().code(0);
    let renewed = nodes.with(&lease, "renew", &["--json"]).end().code(0);
    assert!(renewed.stderr.contains("canal: a: the lease on `x`"), "{}", renewed.stderr);
    assert_eq!(states(&renewed.json()), ["lost", "renewed", "renewed"]);
    nodes.with(&lease, "release", &[]).end().code(0);
    nodes.until_free();
}

#[test]
fn a_node_that_never_held_its_part_is_not_missed() {
    let nodes = Nodes::ready();
    let taken = nodes.acquire(&["--require", "majority", "--json"]).end().code(0).json();
    let handle = taken["handle"].as_str().unwrap().to_owned();
    nodes.with(&Lease { handle, token: 0 }, "release", &[]).end().code(0);
    // The node that is asked last, and that the request does not wait for.
    let last = taken["nodes"][2]["name"].as_str().unwrap();
    let last = NAMES.iter().position(|name| *name == last).unwrap();
    let holder = nodes.nodes[last].holder(&["-k", "x"]);
    let lease = nodes.lease(&["--require", "majority"]);
    let renewed = nodes.with(&lease, "renew", &["--json"]).end().code(0);
    assert_eq!(renewed.stderr, "");
    let mut expected = ["renewed"; 3];
    expected[last] = "none";
    assert_eq!(states(&renewed.json()), expected);
    nodes.with(&lease, "release", &[]).end().code(0);
    holder.finish().code(0);
    nodes.until_free();
}

#[test]
fn a_client_that_is_killed_leaves_nothing_wherever_it_is() {
    let nodes = Nodes::ready();
    // The client is killed while it waits.
    let lease = nodes.long_lease(&[]);
    let waiter = nodes.acquire(&[]).spawn();
    wait_until("it waits at the first node", || nodes.waiting() == 1);
    waiter.kill();
    wait_until("it is withdrawn", || nodes.waiting() == 0);
    nodes.with(&lease, "release", &[]).end().code(0);
    assert_eq!(nodes.held(), [0, 0, 0]);
    // The client is killed while it takes its parts.
    for after_ms in (0..60).step_by(12) {
        let client = nodes.acquire(&[]).spawn();
        thread::sleep(Duration::from_millis(after_ms));
        let has_printed = !client.kill().stdout.is_empty();
        nodes.until_free();
        // A client that has printed the handle leaves a lease that no process renews.
        assert!(has_printed || !nodes.reasons().contains(&"expired".to_owned()));
        let next = nodes.lease(&[]);
        nodes.with(&next, "release", &[]).end().code(0);
    }
    // The client is killed after all nodes have confirmed, and before it has printed the handle.
    let (client, _reader) = stuck(&nodes);
    client.kill();
    nodes.until_free();
    assert_eq!(nodes.reasons(), ["released"; 3]);
}

#[test]
fn a_lease_whose_handle_cannot_be_printed_is_given_back() {
    let nodes = Nodes::ready();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let failed = nodes.acquire(&[]).stdout(writer).end().code(125);
    assert!(failed.stderr.contains("cannot write to stdout"), "{}", failed.stderr);
    assert_eq!(nodes.held(), [0, 0, 0]);
    assert_eq!(nodes.reasons(), ["released"; 3]);
}

#[test]
fn a_killed_coordinator_is_replaced_while_a_lease_is_waited_for() {
    let nodes = Nodes::ready();
    let lease = nodes.long_lease(&[]);
    let waiter = nodes.acquire(&[]).spawn();
    wait_until("it waits at the first node", || nodes.waiting() == 1);
    let first = coordinator(waiter.pid(), waiter.pid()).unwrap();
    signal(first, Signal::SIGKILL);
    wait_until("there is another one", || {
        coordinator(waiter.pid(), waiter.pid()).is_some_and(|pid| pid != first)
    });
    nodes.with(&lease, "release", &[]).end().code(0);
    let next = Lease::of(&waiter.end().code(0).stdout);
    assert!(next.token > lease.token);
    nodes.with(&next, "release", &[]).end().code(0);
    assert_eq!(nodes.held(), [0, 0, 0]);
}

#[test]
fn a_lease_outlives_a_coordinator_that_is_killed_before_the_handle_is_printed() {
    let nodes = Nodes::ready();
    let (mut client, mut reader) = stuck(&nodes);
    let first = coordinator(client.pid(), client.pid()).unwrap();
    signal(first, Signal::SIGKILL);
    wait_until("it is gone", || !alive(first));
    let drained = thread::spawn(move || {
        let mut printed = String::new();
        reader.read_to_string(&mut printed).unwrap();
        printed
    });
    wait_until("the client ends", || client.has_ended());
    client.end().code(0);
    let lease = Lease::of(drained.join().unwrap().trim_start());
    nodes.with(&lease, "renew", &[]).end().code(0);
    nodes.with(&lease, "release", &[]).end().code(0);
    assert_eq!(nodes.held(), [0, 0, 0]);
}

#[test]
fn ctrl_c_while_a_lease_is_waited_for_leaves_nothing() {
    let nodes = Nodes::ready();
    let lease = nodes.long_lease(&[]);
    let waiter = nodes.acquire(&[]).spawn();
    wait_until("it waits at the first node", || nodes.waiting() == 1);
    waiter.signal(Signal::SIGINT);
    assert_eq!(waiter.end().signal, Some(libc::SIGINT));
    wait_until("it is withdrawn", || nodes.waiting() == 0);
    nodes.with(&lease, "release", &[]).end().code(0);
    assert_eq!(nodes.held(), [0, 0, 0]);
}

#[test]
fn handles_that_are_none_are_refused_without_being_repeated() {
    let nodes = Nodes::ready();
    let lease = nodes.long_lease(&[]);
    let Lease { handle, .. } = &lease;
    let cut = &handle[..handle.len() - 8];
    let changed = format!("{}{}", &handle[..40], handle[40..].replace('0', "1"));
    let garbage = format!("n{}", "secret".repeat(40));
    for (wrong, message) in [
        (cut, "the handle is incomplete or has been altered"),
        (changed.as_str(), "the handle is incomplete or has been altered"),
        (garbage.as_str(), "the handle is incomplete or has been altered"),
        (&handle[1..], "a handle is 32 hexadecimal digits"),
    ] {
        for verb in ["renew", "release"] {
            let refused = nodes.here.canal([verb, "--handle", wrong]).end().code(125);
            let first = refused.stderr.lines().next().unwrap();
            assert_eq!(first, format!("canal: --handle: {message}"));
            assert!(
                refused
                    .stderr
                    .contains("hint: take a lease with `canal acquire --ttl`, which prints"),
                "{first}"
            );
            assert!(!refused.stderr.contains(&wrong[..20]), "{}", refused.stderr);
        }
    }
    assert_eq!(nodes.held(), [1, 1, 1]);
    nodes.with(&lease, "release", &[]).end().code(0);
}

#[test]
fn a_handle_is_of_use_elsewhere_only_to_those_who_reach_the_nodes() {
    let nodes = Nodes::ready();
    let lease = nodes.lease(&[]);
    // Another user has no names for the nodes, and has never met them.
    let other = crate::world::World::new();
    let renewed = other.canal(["renew", "-v"]).env("CANAL_HANDLE", &lease.handle).end().code(0);
    assert!(renewed.stderr.contains("renewed x until "), "{}", renewed.stderr);
    if !root_or_skip("another user cannot reach the nodes") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(place.path(), Some(65_533), Some(65_533)).unwrap();
    let refused = Command::new(crate::isolation::for_every_user(canal()))
        .arg("release")
        .env("CANAL_HANDLE", &lease.handle)
        .env("CANAL_SOCKET", place.path().join("canal.sock"))
        .env("TEST_WORLD", nodes.here.path(""))
        .current_dir("/")
        .uid(65_533)
        .gid(65_533)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains(" is unreachable: "), "{said}");
    // The lease was not released: it ended with its TTL.
    nodes.until_free();
    assert_eq!(nodes.reasons(), ["expired"; 3]);
}

#[test]
fn options_that_do_not_go_together_are_one_line_with_a_hint() {
    let nodes = Nodes::ready();
    for (args, message, hint) in [
        (&["x"][..], "--on needs --ttl, because other machines cannot see", "`canal run --on`"),
        (&["x", "--pid", "1"], "--on needs --ttl, because other machines cannot see", ""),
        (
            &["x", "--ttl", "9s"],
            "a TTL of 9s is too short for a node lease",
            "no time to reconnect",
        ),
        (
            &["--write", "x", "--ttl", "10s", "--require", "majority"],
            "--write x would not block commands on the other nodes",
            "--require all",
        ),
        (
            &["x", "--ttl", "10s", "-E", "0"],
            "-E 0 would let the script continue without the lock",
            "",
        ),
    ] {
        let words = ["acquire", "--on", "a,b,c"].iter().chain(args);
        let ended = nodes.here.canal(words).end().code(125);
        assert!(ended.stderr.contains(message), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(hint), "{args:?}: {}", ended.stderr);
    }
    let ended = nodes.here.canal(["acquire", "x", "--require", "all"]).end().code(125);
    assert!(ended.stderr.contains("--on"), "{}", ended.stderr);
    let long = format!("ssh:{}", "x".repeat(60_000));
    let words = ["acquire", "--on", &long, "--ttl", "10s", "x"];
    let ended = nodes.here.canal(words).end().code(125);
    assert!(ended.stderr.contains(" characters, more than "), "{}", ended.stderr);
    assert_eq!(nodes.held(), [0, 0, 0]);
}

#[test]
fn what_is_printed_of_a_lease_is_what_later_steps_need() {
    let nodes = Nodes::ready();
    let taken = nodes.acquire(&["--require", "majority", "--json"]).end().code(0).json();
    assert_eq!(taken["keys"][0]["key"], "x");
    assert_eq!(taken["keys"][0]["slots"], serde_json::json!([]));
    assert_eq!(taken["ttl_ms"], 10_000);
    assert_eq!(taken["need"], 2);
    let at = taken["nodes"].as_array().unwrap();
    assert!(at.len() == 3 && at.iter().all(|node| node["held"] == true), "{taken}");
    let token = taken["token"].as_u64().unwrap();
    let handle = taken["handle"].as_str().unwrap().to_owned();
    nodes.with(&Lease { handle, token }, "release", &[]).end().code(0);
    let lines = nodes.acquire(&["--require", "any"]).end().code(0).stdout;
    let value = |name: &str| lines.lines().find_map(|it| it.strip_prefix(name));
    assert!(NAMES.contains(&value("CANAL_NODE=").unwrap()), "{lines}");
    assert_eq!(value("CANAL_NODE="), value("CANAL_NODES="));
    assert_eq!(value("CANAL_SLOTS="), Some("0"));
    nodes.with(&Lease::of(&lines), "release", &[]).end().code(0);
    // A requirement that excludes no other request has no token.
    let taken = nodes.acquire(&["--require", "all-alive", "--json"]).end().code(0).json();
    assert_eq!(taken["token"], Value::Null);
    let handle = taken["handle"].as_str().unwrap().to_owned();
    let renewed = nodes.with(&Lease { handle: handle.clone(), token: 0 }, "renew", &["--json"]);
    assert_eq!(renewed.end().code(0).json()["token"], Value::Null);
    nodes.with(&Lease { handle, token: 0 }, "release", &[]).end().code(0);
    assert_eq!(nodes.held(), [0, 0, 0]);
}
