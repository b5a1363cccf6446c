//! `canal bridge`: the calls that it passes on, and its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::world::World;
use crate::world::process::signal;

/// A bridge and its two ends.
struct Bridge {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Bridge {
    fn start(world: &World, args: &[&str]) -> Self {
        let mut cmd = world.canal(["bridge"].iter().chain(args));
        cmd.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = cmd.command.spawn().unwrap();
        let (to, from) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, to, from: BufReader::new(from) }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.to.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn send(&mut self, call: &Value) {
        self.write(format!("{call}\0").as_bytes());
    }

    fn message(&mut self) -> Vec<u8> {
        let mut message = Vec::new();
        self.from.read_until(0, &mut message).unwrap();
        assert_eq!(message.pop(), Some(0), "the bridge has ended");
        message
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.send(&json!({ "method": method, "parameters": parameters }));
        serde_json::from_slice(&self.message()).unwrap()
    }

    /// Waits for its end. Returns the exit code and its error output.
    fn end(mut self) -> (i32, String) {
        let code = self.child.wait().unwrap().code().unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (code, said)
    }
}

const GET_INFO: &str = "org.varlink.service.GetInfo";

fn acquire(tag: u128) -> Value {
    json!({
        "method": "io.canal.Lock.Acquire",
        "more": true,
        "parameters": { "tag": format!("{tag:032x}"), "items": [{ "key": "x" }], "command": "far" },
    })
}

#[test]
fn calls_and_answers_pass_and_a_daemon_is_started() {
    let world = World::new();
    let mut bridge = Bridge::start(&world, &[]);
    let info = bridge.call(GET_INFO, &json!({}));
    assert_eq!(info["parameters"]["vendor"], "canal");
    let keys = bridge.call("io.canal.Lock.Status", &json!({}));
    assert_eq!(keys["parameters"]["keys"], json!([]));
    // Two calls arrive in one write, and one in two.
    let call = format!("{}\0", json!({ "method": GET_INFO }));
    bridge.write(&[call.as_bytes(), &call.as_bytes()[..9]].concat());
    bridge.message();
    bridge.write(&call.as_bytes()[9..]);
    bridge.message();
    bridge.to = None;
    assert_eq!(bridge.end(), (0, String::new()));
}

#[test]
fn a_beat_is_answered_with_a_beat_and_the_daemon_sees_none() {
    let world = World::new();
    let mut bridge = Bridge::start(&world, &[]);
    bridge.write(b"\0");
    assert_eq!(bridge.message(), b"");
    assert_eq!(bridge.call(GET_INFO, &json!({}))["parameters"]["product"], "canal");
    bridge.write(b"\0\0");
    assert_eq!((bridge.message(), bridge.message()), (Vec::new(), Vec::new()));
}

#[test]
fn a_bridge_that_hears_nothing_for_a_ttl_ends_with_its_connection() {
    let world = World::new();
    let mut bridge = Bridge::start(&world, &[]);
    bridge.send(&acquire(1));
    bridge.message();
    world.until_held("x", 1);
    let collect = json!({ "method": "io.canal.Nodes.Collect", "parameters": { "ttl_ms": 700 } });
    bridge.send(&collect);
    let (code, said) = bridge.end();
    assert_eq!((code, said.as_str()), (125, "canal: the other side sent nothing for 700ms\n"));
    world.until_held("x", 0);
}

#[test]
fn the_end_of_the_client_gives_back_what_it_held_and_withdraws_what_it_waits_for() {
    let world = World::new();
    let mut holder = Bridge::start(&world, &[]);
    holder.send(&acquire(1));
    holder.message();
    let mut waiter = Bridge::start(&world, &[]);
    waiter.send(&acquire(2));
    waiter.message();
    world.until_waiting("x", 1);
    waiter.to = None;
    assert_eq!(waiter.end(), (0, String::new()));
    world.until_waiting("x", 0);
    signal(holder.child.id().cast_signed(), Signal::SIGKILL);
    world.until_held("x", 0);
    holder.child.wait().unwrap();
}

#[test]
fn an_idle_bridge_goes_on_with_the_next_daemon() {
    let world = World::new();
    let mut bridge = Bridge::start(&world, &[]);
    let pid = |bridge: &mut Bridge| {
        let status = bridge.call("io.canal.Lock.Status", &json!({}));
        status["parameters"]["daemon"]["pid"].as_i64().unwrap()
    };
    let first = pid(&mut bridge);
    world.kill_daemon();
    assert_ne!(pid(&mut bridge), first);
}

#[test]
fn a_bridge_whose_client_waits_ends_with_the_daemon() {
    let world = World::new();
    let _holder = world.holder(&["-k", "x"]);
    let mut waiter = Bridge::start(&world, &[]);
    waiter.send(&acquire(2));
    waiter.message();
    world.until_waiting("x", 1);
    world.kill_daemon();
    let (code, said) = waiter.end();
    assert_eq!((code, said.as_str()), (125, "canal: the daemon ended during the call\n"));
}

#[test]
fn a_last_call_is_answered_although_its_caller_writes_no_more() {
    let world = World::new();
    let call = format!("{}\\0", json!({ "method": GET_INFO }));
    let out = world.sh(&format!("printf '{call}' | canal bridge")).end().code(0).stdout;
    assert!(out.contains("\"vendor\":\"canal\""), "{out}");
}

#[test]
fn wrong_options_are_one_line() {
    let world = World::new();
    for (args, said) in [
        (&["bridge", "--keys", "x"][..], "--leases"),
        (&["bridge", "--leases", "--keys", "a//b"], "a key cannot have an empty component"),
        (&["bridge", "--leases", "--keys"], "--keys needs a value"),
    ] {
        let ended = world.canal(args).end().code(125);
        assert!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
    }
}
