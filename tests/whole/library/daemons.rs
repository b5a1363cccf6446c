//! Daemons of tests, and locks that outlive their daemon.

use std::process::Command;

use canal::testing::Daemon;
use canal::{Client, Endpoint};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{daemon_process, lock};
use crate::world::process::wait_until;

#[test]
fn daemons_of_one_process_do_not_meet() {
    let daemons: Vec<_> = (0..3).map(|_| Daemon::start().unwrap()).collect();
    let guards: Vec<_> = daemons.iter().map(|it| lock(it, "db").acquire().unwrap()).collect();
    for (daemon, guard) in daemons.iter().zip(&guards) {
        let status = Client::connect_to(&daemon.endpoint()).unwrap().status().unwrap();
        assert_eq!(status.daemon.socket, daemon.socket().display().to_string());
        assert_eq!((status.daemon.pid, daemon.pid()), (std::process::id(), std::process::id()));
        assert_eq!(status.keys[0].holders[0].token, guard.token());
    }
}

#[test]
fn nothing_is_left_of_a_daemon() {
    for daemon in [Daemon::start().unwrap(), daemon_process()] {
        let (dir, pid) = (daemon.dir().to_owned(), daemon.pid());
        assert!(daemon.socket().exists());
        drop(daemon);
        assert!(!dir.exists(), "{}", dir.display());
        let is_here = pid == std::process::id();
        assert!(is_here || kill(Pid::from_raw(pid.cast_signed()), None).is_err());
    }
}

/// The properties of the whole process, as /proc shows them.
fn of_process() -> (Vec<String>, String) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let is_of_process = |line: &&str| line.starts_with("Umask") || line.starts_with("SigIgn");
    let lines = status.lines().filter(is_of_process).map(str::to_owned);
    (lines.collect(), std::fs::read_to_string("/proc/self/limits").unwrap())
}

#[test]
#[ignore = "needs a process of its own; the next test runs it there"]
fn leaves_the_process_as_it_is() {
    let before = of_process();
    let daemon = Daemon::start().unwrap();
    let _guard = lock(&daemon, "db").acquire().unwrap();
    assert_eq!(of_process(), before);
    assert!(tracing::dispatcher::get_default(|log| log.is::<tracing::subscriber::NoSubscriber>()));
}

#[test]
fn a_daemon_in_a_thread_leaves_the_process_as_it_is() {
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "whole::library::daemons::leaves_the_process_as_it_is", "--ignored"]);
    let output = test.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_program_meets_the_library_at_its_daemon() {
    let daemon = Daemon::start().unwrap();
    let _guard = lock(&daemon, "db").slots(1).acquire().unwrap();
    let mut canal = Command::new(env!("CARGO_BIN_EXE_canal"));
    canal.args(["run", "-q", "-n", "-k", "db", "-j", "1", "--", "true"]);
    canal.env("CANAL_SOCKET", daemon.socket());
    assert_eq!(canal.output().unwrap().status.code(), Some(75));
}

#[test]
fn a_guard_outlives_the_daemon_that_granted_it() {
    let daemon = daemon_process();
    let canal = env!("CARGO_BIN_EXE_canal");
    let endpoint = Endpoint::at(daemon.socket()).program(canal);
    let lock = lock(&daemon, "db").slots(1).endpoint(&endpoint);
    let guard = lock.acquire().unwrap();
    let mut updates = Client::connect_to(&endpoint).unwrap().updates();
    assert_eq!(updates.next().unwrap().unwrap().daemon.pid, daemon.pid());

    kill(Pid::from_raw(daemon.pid().cast_signed()), Signal::SIGKILL).unwrap();
    // The watch starts the next daemon, which takes over the hold.
    let status = updates.next().unwrap().unwrap();
    assert_ne!(status.daemon.pid, daemon.pid());
    assert_eq!(status.keys[0].holders[0].token, guard.token());
    guard.release().unwrap();
    assert!(updates.any(|status| status.unwrap().keys.iter().all(|key| key.held == 0)));
    let next = status.daemon.pid.cast_signed();
    drop(daemon);
    wait_until("the next daemon has ended, too", || kill(Pid::from_raw(next), None).is_err());
}
