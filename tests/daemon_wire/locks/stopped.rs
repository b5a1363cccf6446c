//! A waiter whose process is stopped keeps its place and blocks no other request, even if it would
//! not fit anyway.

use canal::sys::process::{RunState, run_state};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Idler, Peer};

/// Two of three slots are held, and a waiter asks for all three.
struct Scene {
    daemon: Daemon,
    holder: Idler,
    large: Idler,
    waiter: Peer,
}

fn slots(tag: u128, count: u64) -> Value {
    json!({
        "tag": format!("{tag:032x}"),
        "items": [{ "key": "a", "count": count }],
        "command": "some",
        "owner_fd": 0,
    })
}

impl Scene {
    fn new() -> Self {
        let daemon = Daemon::start();
        daemon.connect().call("Resize", json!({ "key": "a", "slots": 3 }));
        let holder = daemon.hold_with(1, json!([{ "key": "a", "count": 2 }]));
        let (large, mut waiter) = (Idler::start(), daemon.connect());
        waiter.send_with("Acquire", slots(2, 3), &large.pidfd());
        daemon.until_use("a", 2, 1);
        Self { daemon, holder, large, waiter }
    }

    fn stop(&self) {
        kill(Pid::from_raw(self.large.pid().cast_signed()), Signal::SIGSTOP).unwrap();
        wait_until("it is stopped", || run_state(self.large.pid()) == RunState::Stopped);
    }

    fn go_on(&self) {
        kill(Pid::from_raw(self.large.pid().cast_signed()), Signal::SIGCONT).unwrap();
    }

    /// Another process asks for one slot.
    fn ask(&self, tag: u128, wait_ms: Option<u64>) -> (Idler, Peer) {
        let (idler, mut peer) = (Idler::start(), self.daemon.connect());
        let mut parameters = slots(tag, 1);
        if let Some(wait_ms) = wait_ms {
            parameters["wait_ms"] = wait_ms.into();
        }
        peer.send_with("Acquire", parameters, &idler.pidfd());
        (idler, peer)
    }
}

#[test]
fn a_try_acquire_passes_a_stopped_waiter() {
    let scene = Scene::new();
    assert_eq!(scene.ask(3, Some(0)).1.error().0, "Refused", "it runs, and is ahead");
    scene.stop();
    let (_idler, mut peer) = scene.ask(4, Some(0));
    peer.returned("Acquire");
    assert_eq!(scene.daemon.use_of("a"), (3, 1), "the stopped one keeps its place");
}

#[test]
fn a_try_acquire_passes_a_waiter_that_is_stopped_before_it_has_come_back() {
    let mut scene = Scene::new();
    scene.daemon.kill();
    scene.daemon.run(|_| {});
    scene.daemon.until_use("a", 2, 1);
    scene.stop();
    let (idler, mut peer) = scene.ask(4, Some(0));
    peer.returned("Acquire");
    assert_eq!(scene.daemon.use_of("a"), (3, 1), "the stopped one keeps its place");
    scene.go_on();
    // It returns to its place.
    let mut waiter = scene.daemon.connect();
    waiter.send_with("Acquire", slots(2, 3), &scene.large.pidfd());
    drop((scene.holder, idler));
    waiter.returned("Acquire");
}

#[test]
fn a_request_behind_only_a_stopped_waiter_is_granted_at_once() {
    let scene = Scene::new();
    scene.stop();
    let (_idler, mut peer) = scene.ask(3, None);
    peer.returned("Acquire");
}

#[test]
fn a_waiter_passes_a_waiter_that_is_stopped_later() {
    let scene = Scene::new();
    let (_idler, mut peer) = scene.ask(3, None);
    scene.daemon.until_use("a", 2, 2);
    assert!(peer.is_silent());
    scene.stop();
    peer.returned("Acquire");
}

#[test]
fn a_stopped_waiter_is_ahead_again_when_it_runs() {
    let mut scene = Scene::new();
    scene.stop();
    let (idler, mut peer) = scene.ask(3, Some(0));
    peer.returned("Acquire");
    scene.go_on();
    drop((idler, peer));
    scene.daemon.until_use("a", 2, 1);
    wait_until("it is ahead again", || {
        let refused = scene.ask(4, Some(0)).1.reply().unwrap().get("error").is_some();
        scene.daemon.until_use("a", 2, 1);
        refused
    });
    drop(scene.holder);
    assert_eq!(scene.waiter.returned("Acquire")["keys"][0]["slots"].as_array().unwrap().len(), 3);
}
