//! `canal daemon --stop` when the daemon ends on its own at the same time.

use std::os::unix::net::UnixListener;

use nix::sys::signal::Signal;

use crate::world::World;
use crate::world::process::signal;

#[test]
fn a_daemon_that_ends_before_it_answers_was_stopped() {
    let world = World::new().on_one_host();
    let listener = UnixListener::bind(world.socket()).unwrap();
    let stop = world.canal(["daemon", "--stop"]).spawn();
    let (stream, _) = listener.accept().unwrap();
    // Close the socket as the kernel does for a killed process.
    drop(listener);
    drop(stream);
    let ended = stop.end().code(0);
    let socket = world.socket();
    let expected = format!("canal: no daemon is running at {}\n", socket.display());
    assert_eq!((ended.stdout.as_str(), ended.stderr), ("", expected));
}

#[test]
fn stopping_right_after_a_kill_succeeds() {
    let world = World::new().on_one_host();
    for _ in 0..10 {
        signal(world.daemon_pid(), Signal::SIGKILL);
        let ended = world.canal(["daemon", "--stop"]).end().code(0);
        assert!(ended.stderr.lines().count() <= 1, "{ended:?}");
    }
}
