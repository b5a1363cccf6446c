//! Waiters of the previous daemon that have not come back.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::tests::{World, call, mutex};
use canal_sys::process::{Activity, activity};
use canal_sys::rerun::{self, wait_until};

const SCENE: &str = "tests::waiters_not_back::scene_a_client_asks_and_becomes_a_shell";

/// The script of the shell, and the socket of the daemon.
const SCRIPT: &str = "CANAL_TEST_SCRIPT";
const SOCKET: &str = "CANAL_TEST_SOCKET";

#[test]
#[ignore = "a scene"]
fn scene_a_client_asks_and_becomes_a_shell() {
    if !rerun::plays(SCENE) {
        return;
    }
    let mut stream = UnixStream::connect(std::env::var_os(SOCKET).unwrap()).unwrap();
    stream.write_all(&call("Acquire", &mutex(2, "a"))).unwrap();
    // The shell keeps the connection as its standard input.
    let script = std::env::var(SCRIPT).unwrap();
    let mut shell = Command::new("/bin/sh");
    panic!("{}", shell.args(["-c", &script]).stdin(OwnedFd::from(stream)).exec());
}

/// A client that waits for `a`, and runs `script` when the daemon has been replaced.
fn left_behind(world: World, script: &str, does: Activity) -> (World, Client) {
    let mut world = world;
    let mut command = rerun::command(SCENE, "");
    command.env(SOCKET, world.place.socket.as_os_str()).env(SCRIPT, script);
    let client = Client(command.spawn().unwrap());
    let child = &client.0;
    wait_until("it waits", || {
        world.turn();
        world.server.decide.table().waiters().len() == 1
    });
    let is_shell = || std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
    wait_until("it has become what it is to be", || {
        ["sh\n", "sleep\n"].contains(&is_shell().as_str()) && activity(child.id()) == does
    });
    (world.again(), client)
}

/// A client's process, which ends with its test even if the test fails.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether it still waits when the daemon gives up the waiters that have not come back after
/// `after`.
fn waits(world: &mut World, after: Duration) -> bool {
    world.server.give_up_the_lost(Instant::now() + after);
    world.turn();
    world.server.decide.table().waiters().len() == 1
}

#[test]
fn a_detached_waiter_whose_process_is_busy_is_withdrawn_later() {
    let mut world = World::new();
    world.lease(1, "a");
    let (mut world, _client) = left_behind(world, "while :; do :; done", Activity::Busy);
    assert!(waits(&mut world, Duration::from_secs(5)));
    assert!(world.server.due.come_back.is_some(), "it is looked at again");
    assert!(waits(&mut world, Duration::from_secs(20)));
    assert!(!waits(&mut world, Duration::from_secs(31)), "not for ever");
}

#[test]
fn a_detached_waiter_whose_process_sleeps_is_withdrawn_soon() {
    let mut world = World::new();
    world.lease(1, "a");
    let (mut world, _client) = left_behind(world, "exec sleep 600", Activity::Idle);
    assert!(!waits(&mut world, Duration::from_secs(5)));
}
