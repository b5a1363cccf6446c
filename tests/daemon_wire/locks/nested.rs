//! A frame named in a message encloses its sender only if the kernel confirms it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use canal::sys::pidfd::Pidfd;
use canal::sys::process::parent;
use serde_json::{Value, json};

use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Idler, mutex, mutex_for, try_mutex};

/// A shell with one or more children. Dropping it ends all of them.
struct Family {
    shell: Child,
    child: u32,
    others: Vec<u32>,
}

impl Family {
    fn start() -> Self {
        Self::of(1)
    }

    fn of(children: usize) -> Self {
        let mut command = Command::new("/bin/sh");
        let starts = "sleep 600 >/dev/null & echo $!; ".repeat(children);
        command.args(["-c", &format!("{starts}wait")]);
        let mut shell = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let mut started = lines.take(children).map(|line| line.unwrap().trim().parse().unwrap());
        let child = started.next().unwrap();
        Self { shell, child, others: started.collect() }
    }

    fn kill_shell(&mut self) {
        self.shell.kill().unwrap();
        self.shell.wait().unwrap();
        wait_until("the child has another parent", || parent(self.child) != Some(self.shell.id()));
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        for child in self.others.iter().chain([&self.child]) {
            if let Ok(child) = Pidfd::open(*child) {
                let _ = child.signal(nix::sys::signal::Signal::SIGKILL);
            }
        }
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// Asks for a process under a frame, and confirms the grant.
#[track_caller]
fn granted_to(daemon: &Daemon, pid: u32, frame: &Value, tag: u128, key: &str) -> Value {
    let mut peer = daemon.connect();
    let mut parameters = mutex_for(tag, key);
    parameters["frame"] = frame.clone();
    parameters["wait_ms"] = 0.into();
    peer.send_with("Acquire", parameters, &Pidfd::open(pid).unwrap());
    let grant = peer.returned("Acquire");
    peer.call("Confirm", json!({ "tag": format!("{tag:032x}") }));
    grant
}

#[test]
fn a_descendant_of_the_named_frame_is_nested_in_its_session() {
    let daemon = Daemon::start();
    let outer = daemon.connect().call("Acquire", mutex(1, "a"));
    let idler = Idler::start();
    let inner = granted_to(&daemon, idler.pid(), &outer["frame"], 2, "b");
    assert_eq!(inner["session"], outer["session"]);
    assert_ne!(inner["frame"], outer["frame"]);
    // Re-entrant, because an enclosing frame holds it.
    granted_to(&daemon, idler.pid(), &outer["frame"], 3, "a");
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn a_request_without_a_frame_begins_a_session() {
    let daemon = Daemon::start();
    let outer = daemon.connect().call("Acquire", mutex(1, "a"));
    let idler = Idler::start();
    let inner = granted_to(&daemon, idler.pid(), &Value::Null, 2, "b");
    assert_ne!(inner["session"], outer["session"]);
}

#[test]
fn a_process_outside_the_frame_that_it_names_begins_a_session() {
    let daemon = Daemon::start();
    let (one, other) = (Idler::start(), Idler::start());
    let first = granted_to(&daemon, one.pid(), &Value::Null, 1, "a");
    let second = granted_to(&daemon, other.pid(), &first["frame"], 2, "b");
    assert_ne!(second["session"], first["session"]);
    let mut peer = daemon.connect();
    let mut parameters = try_mutex(3, "a");
    parameters["frame"] = first["frame"].clone();
    peer.send("Acquire", parameters);
    assert_eq!(peer.error().0, "Refused", "an ancestor is a stranger too");
}

#[test]
fn a_request_that_names_an_unknown_frame_begins_a_session() {
    let daemon = Daemon::start();
    let outer = daemon.connect().call("Acquire", mutex(1, "a"));
    let mut tag = 1;
    for name in ["", "f", "f0", "f99999", "s1", "1", "f-1", "f18446744073709551616"] {
        let idler = Idler::start();
        tag += 1;
        let inner = granted_to(&daemon, idler.pid(), &name.into(), tag, &format!("k{tag}"));
        assert_ne!(inner["session"], outer["session"], "{name:?}");
    }
}

#[test]
fn the_innermost_frame_among_the_ancestors_encloses() {
    let daemon = Daemon::start();
    let outer = daemon.connect().call("Acquire", mutex(1, "a"));
    let family = Family::start();
    let shell = granted_to(&daemon, family.shell.id(), &outer["frame"], 2, "b");
    // It names the outermost frame, but is inside the shell's frame anyway: the shell's holds do
    // not block it.
    let child = granted_to(&daemon, family.child, &outer["frame"], 3, "b");
    assert_eq!([&shell["session"], &child["session"]], [&outer["session"]; 2]);
    assert_eq!(daemon.use_of("b"), (1, 0));
}

#[test]
fn a_process_that_outlives_its_frame_is_no_longer_inside_it() {
    let daemon = Daemon::start();
    let mut family = Family::start();
    let shell = granted_to(&daemon, family.shell.id(), &Value::Null, 1, "a");
    let inner = granted_to(&daemon, family.child, &shell["frame"], 2, "b");
    assert_eq!(inner["session"], shell["session"]);
    let mut other = Family::start();
    let gone = granted_to(&daemon, other.shell.id(), &Value::Null, 3, "c");
    other.kill_shell();
    daemon.until_use("c", 0, 0);
    let left = granted_to(&daemon, other.child, &gone["frame"], 4, "d");
    assert_ne!(left["session"], gone["session"]);
    // The child of the first shell keeps only its own hold.
    family.kill_shell();
    daemon.until_use("a", 0, 0);
    assert_eq!(daemon.key("b").unwrap().holders[0].session, inner["session"]);
}

#[test]
fn a_frame_that_holds_nothing_itself_still_encloses_after_a_restart() {
    let mut daemon = Daemon::start();
    let family = Family::start();
    let shell = granted_to(&daemon, family.shell.id(), &Value::Null, 1, "a");
    let idler = granted_to(&daemon, family.child, &shell["frame"], 2, "b");
    assert_eq!(idler["session"], shell["session"]);
    let mut peer = daemon.connect();
    let owner = Pidfd::open(family.shell.id()).unwrap();
    peer.send_with("Release", json!({ "all": true, "owner_fd": 0 }), &owner);
    peer.returned("Release");

    daemon.kill();
    daemon.run(|_| {});
    assert_eq!(daemon.key("b").unwrap().holders[0].session, shell["session"]);
    let again = granted_to(&daemon, family.child, &shell["frame"], 3, "c");
    assert_eq!(again["session"], shell["session"]);
    let shell_again = granted_to(&daemon, family.shell.id(), &Value::Null, 4, "d");
    assert_eq!(shell_again["frame"], shell["frame"], "its process is known as it was");
}

#[test]
fn two_processes_of_one_session_that_block_each_other_are_told_so() {
    let daemon = Daemon::start();
    let family = Family::of(2);
    let outer = granted_to(&daemon, family.shell.id(), &Value::Null, 1, "outer")["frame"].clone();
    let (one, other) = (family.child, family.others[0]);
    granted_to(&daemon, one, &outer, 2, "x");
    granted_to(&daemon, other, &outer, 3, "y");
    let ask = |pid: u32, tag: u128, key: &str| {
        let mut peer = daemon.connect();
        peer.send_with("Acquire", mutex_for(tag, key), &Pidfd::open(pid).unwrap());
        peer
    };
    let waits = ask(one, 4, "y");
    daemon.until_use("y", 1, 1);
    let (_, refused) = ask(other, 5, "x").error();
    let words = "deadlock on `x`: 2 processes of one session would wait for each other forever";
    assert_eq!(refused["message"], words);
    let cycle = refused["cycle"].as_array().unwrap();
    let pids: Vec<_> = cycle.iter().map(|step| step["waiter"]["pid"].clone()).collect();
    assert_eq!(pids, [json!(other), json!(one)]);
    assert!(cycle.iter().all(|step| step["waiter"]["session"] == cycle[0]["waiter"]["session"]));
    drop(waits);
}
