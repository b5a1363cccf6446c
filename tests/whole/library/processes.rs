//! Processes exclude each other, and the locks of a process are free after its death.

use std::time::{Duration, Instant};

use canal::testing::Daemon;
use canal::{ErrorKind, Lock};

use super::lock;
use super::scene::{Scene, TURNS};
use crate::world::process::BOUND;

#[test]
fn a_lock_is_free_when_its_process_is_killed() {
    let daemon = Daemon::start().unwrap();
    let mut scene = Scene::holds(&daemon, "db");
    let token: u64 = scene.line().strip_prefix("holds ").unwrap().parse().unwrap();
    let own = lock(&daemon, "db").slots(1);
    assert!(own.try_acquire().unwrap().is_none(), "another process has it");
    scene.kill();
    let guard = own.try_acquire().unwrap().expect("its holder is dead");
    assert!(guard.token() > token);
}

#[test]
fn a_wait_ends_with_the_holder_or_with_its_time() {
    let daemon = Daemon::start().unwrap();
    let mut scene = Scene::holds(&daemon, "db");
    scene.line();
    let own = lock(&daemon, "db").slots(1);
    let begun = Instant::now();
    let error = own.clone().wait(Duration::from_millis(50)).acquire().unwrap_err();
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(error.holders()[0].pid, scene.pid());
    assert_eq!(error.holders()[0].command.as_deref(), Some("a scene"));
    assert_eq!(own.clone().wait(Duration::ZERO).acquire().unwrap_err().kind(), ErrorKind::Busy);

    let mut told = Vec::new();
    let guard = std::thread::scope(|scope| {
        let (tell, waits) = std::sync::mpsc::channel();
        let waiter = scope.spawn(move || {
            own.acquire_with(|progress| {
                tell.send(progress.clone()).unwrap();
            })
        });
        told.push(waits.recv_timeout(BOUND).unwrap());
        assert!(scene.end(), "it releases at its end");
        waiter.join().unwrap().unwrap()
    });
    assert_eq!((told[0].key.as_str(), told[0].position), ("db", 1));
    assert_eq!(guard.slot(), Some(0));
}

#[test]
fn processes_that_take_turns_are_never_in_at_once() {
    let daemon = Daemon::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut scenes: Vec<_> =
        (0..4).map(|_| Scene::takes_turns(&daemon, "alone", dir.path())).collect();
    for scene in &mut scenes {
        assert!(scene.end());
    }
    let guard = lock(&daemon, "alone").acquire().unwrap();
    assert!(guard.token() > (scenes.len() * TURNS) as u64);
}

#[test]
fn a_fork_does_not_release_the_lock_of_its_parent() {
    let daemon = Daemon::start().unwrap();
    let mut scene = Scene::forks(&daemon, "db");
    assert!(scene.line().starts_with("still holds "));
    assert!(lock(&daemon, "db").slots(1).try_acquire().unwrap().is_none());
    assert!(scene.end(), "and it can release it");
    assert!(lock(&daemon, "db").slots(1).try_acquire().unwrap().is_some());
}

#[test]
fn a_writer_waits_for_what_lies_below() {
    let daemon = Daemon::start().unwrap();
    let mut scene = Scene::holds(&daemon, "db/x");
    scene.line();
    let write = Lock::write("db").endpoint(&daemon.endpoint());
    assert!(write.try_acquire().unwrap().is_none());
    let read = Lock::read("db").endpoint(&daemon.endpoint());
    assert!(read.try_acquire().unwrap().is_some(), "slots are like reading");
    assert!(scene.end());
    assert!(write.try_acquire().unwrap().is_some());
}
