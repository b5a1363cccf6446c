//! Errors explain the problem.

use std::path::Path;

use canal::testing::Daemon;
use canal::{Client, Endpoint, ErrorKind, Lock};

use super::lock;
use super::scene::Scene;

#[test]
fn each_kind_of_mistake_has_its_kind_of_error() {
    let daemon = Daemon::start().unwrap();
    let kind = |lock: Lock| {
        let error = lock.acquire().unwrap_err();
        assert!(!error.to_string().is_empty());
        (error.kind(), error.to_string())
    };
    for (lock, message) in [
        (lock(&daemon, "a//b"), "a key cannot have an empty component; `//` is at byte 1"),
        (lock(&daemon, "a").slots(2).per(1), "`a` has either `slots`, or `per` and `buckets`"),
        (lock(&daemon, "a").buckets(2), "`per` and `buckets` of `a` must be given together"),
        (
            lock(&daemon, "a").slots(2).count(3),
            "3 slots of `a` can never be granted: the given size is 2",
        ),
    ] {
        let (kind, said) = kind(lock);
        assert_eq!(kind, ErrorKind::Invalid, "{said}");
        assert!(said.contains(message), "{said}");
    }
    let _guard = lock(&daemon, "a").slots(2).acquire().unwrap();
    assert_eq!(kind(lock(&daemon, "a").per(2)).0, ErrorKind::Mismatch);
    let socket = Path::new("/").join("x".repeat(200));
    assert_eq!(Client::connect_to(&Endpoint::at(socket)).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn where_no_daemon_runs_and_none_may_be_started_nothing_is_locked() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("canal.sock");
    let endpoint = Endpoint::at(&socket).no_start();
    let error = Lock::new("a").endpoint(&endpoint).acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(error.to_string(), format!("no daemon is running at {}", socket.display()));
    let missing = dir.path().join("no-canal");
    let endpoint = Endpoint::at(&socket).program(&missing);
    let error = Lock::new("a").endpoint(&endpoint).acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("no-canal"), "{error}");
    let error = Daemon::start_program(missing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let error = Daemon::start_program("false").unwrap_err();
    assert!(error.to_string().contains("the daemon has ended"), "{error}");
}

#[test]
fn a_ring_of_processes_is_a_deadlock_and_told_all_around() {
    let daemon = Daemon::start().unwrap();
    let mut scene = Scene::both(&daemon, "one", "two");
    assert_eq!(scene.line(), "holds one");
    let _two = lock(&daemon, "two").slots(1).acquire().unwrap();
    scene.go_on();
    assert_eq!(scene.line(), "waits");
    let error = lock(&daemon, "one").slots(1).acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
    assert_eq!(error.cycle().len(), 2);
    assert_eq!(error.cycle()[0].blocker.party.pid, scene.pid());
}
