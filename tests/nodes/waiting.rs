//! Requests that wait at a node keep their place, and none waits behind itself, whatever breaks
//! meanwhile. A client that does not continue blocks others for at most its TTL.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::nodes::run::{NAMES, Nodes};
use crate::world::World;
use crate::world::process::{Cmd, Proc, signal, wait_until};

/// How the daemon of a node ends.
#[derive(Clone, Copy, Debug)]
enum How {
    Killed,
    Replaced,
}

impl How {
    /// Ends the daemon. Returns the next daemon, unless the next request starts it.
    fn end(self, node: &World) -> Option<Proc> {
        match self {
            Self::Killed => {
                node.kill_daemon_quietly();
                None
            }
            Self::Replaced => Some(node.canal(["daemon", "--replace", "--foreground"]).spawn()),
        }
    }
}

impl Nodes {
    /// The nodes in the order in which requests ask them.
    fn in_order(&self) -> Vec<&World> {
        let said = self.run(&["--", "sh", "-c", "echo $CANAL_NODES"]).end().code(0).stdout;
        let place = |name: &str| NAMES.iter().position(|it| *it == name).unwrap();
        said.trim().split(',').map(|name| &self.nodes[place(name)]).collect()
    }
}

/// A job of the node itself, which ends when the test finishes it.
fn job(node: &World) -> Proc {
    let job = node.canal(["run", "-k", "x", "--", "cat"]).stdin(Stdio::piped()).spawn();
    wait_until("the job runs", || node.held("x") == 1);
    job
}

/// A request waits at one node, and a job of that node behind it. They are served in this order
/// although the daemon there restarts.
#[track_caller]
fn keeps_its_place(place: usize, how: How, ask: impl FnOnce(&Nodes) -> Cmd<'_>) {
    let nodes = Nodes::new();
    let node = nodes.in_order()[place];
    let first = job(node);
    let request = ask(&nodes).spawn();
    let waiting = |count| wait_until("it waits", || node.key("x").waiting == count);
    waiting(1);
    let order = nodes.here.path("work").join("order");
    let words = ["run", "-k", "x", "--", "sh", "-c", "echo job >> \"$1\"", "sh"];
    let last = node.canal(words).arg(&order).spawn();
    waiting(2);
    let before = node.daemon_pids();
    let _next = how.end(node);
    wait_until("another daemon runs", || {
        let now = node.daemon_pids();
        now.len() == 1 && now != before
    });
    waiting(2);
    first.finish().code(0);
    let ended = request.end().code(0);
    last.end().code(0);
    assert_eq!(nodes.here.read("order"), "request\njob\n", "{place} {how:?}: {}", ended.stderr);
    nodes.until_free();
}

const NOTE: [&str; 4] = ["--", "sh", "-c", "echo request >> order"];

#[test]
fn a_request_keeps_its_place_when_the_daemon_of_a_node_starts_again() {
    std::thread::scope(|scope| {
        for place in 0..3 {
            for how in [How::Killed, How::Replaced] {
                scope.spawn(move || keeps_its_place(place, how, |nodes| nodes.run(&NOTE)));
            }
        }
    });
}

#[test]
fn a_majority_and_a_nested_request_keep_their_place_too() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let require = ["--require", "majority"];
            let words = [&require[..], &NOTE].concat();
            keeps_its_place(1, How::Killed, |nodes| nodes.run(&words));
        });
        scope.spawn(|| {
            let inner = "canal run --on @all --ttl 10s -k x -- sh -c 'echo request >> order'";
            let words = ["run", "--on", "@all", "--ttl", "10s", "-k", "y", "--", "sh", "-c", inner];
            keeps_its_place(1, How::Killed, |nodes| nodes.here.canal(words));
        });
    });
}

#[test]
fn a_lease_that_is_asked_for_keeps_its_place_too() {
    let script = "lease=$(canal acquire --on @all --ttl 10s -k x) || exit; export $lease; \
                  echo request >> order; canal release";
    keeps_its_place(1, How::Killed, |nodes| nodes.here.program("sh", ["-c", script]));
}

/// A client that is frozen with all its processes, as by `docker pause`, holds one node and waits
/// at the next.
#[test]
fn a_frozen_request_keeps_nobody_for_longer_than_its_ttl() {
    let nodes = Nodes::new();
    let order = nodes.in_order();
    let job = job(order[1]);
    let frozen = nodes.run(&["--", "true"]).spawn();
    wait_until("it waits", || order[1].key("x").waiting == 1);
    let processes = nodes.here.processes();
    processes.iter().for_each(|pid| signal(*pid, Signal::SIGSTOP));
    job.finish().code(0);
    nodes.run(&["-w", "100s", "--", "true"]).end().code(0);
    processes.iter().for_each(|pid| signal(*pid, Signal::SIGCONT));
    frozen.end().code(0);
    nodes.until_free();
}

#[test]
fn a_client_that_waits_for_longer_than_the_ttl_keeps_what_it_has() {
    let nodes = Nodes::new();
    let order = nodes.in_order();
    let job = job(order[1]);
    let request = nodes.run(&NOTE).spawn();
    wait_until("it waits", || order[1].key("x").waiting == 1);
    let token = order[0].key("x").holders[0].token;
    let since = Instant::now();
    wait_until("the TTL is over", || since.elapsed() > Duration::from_secs(13));
    assert_eq!(order[0].key("x").holders[0].token, token);
    job.finish().code(0);
    request.end().code(0);
}

#[test]
fn the_time_to_wait_is_one_for_all_coordinators() {
    let nodes = Nodes::new();
    let job = job(nodes.in_order()[0]);
    let mut request = nodes.run(&["-w", "5s", "--", "true"]).spawn();
    let mut seen: Option<(i32, Instant)> = None;
    // Each coordinator lives for less than the time to wait.
    wait_until("the wait timed out", || {
        let now = crate::nodes::faults::killed::coordinator(request.pid());
        match (seen, now) {
            (Some((pid, since)), Some(now)) if pid == now => {
                if since.elapsed() > Duration::from_secs(3) {
                    signal(pid, Signal::SIGKILL);
                }
            }
            (_, now) => seen = now.map(|pid| (pid, Instant::now())),
        }
        request.has_ended()
    });
    request.end().code(75);
    job.finish().code(0);
}
