//! The locks of a guard, and when it releases them.

use std::thread;
use std::time::Duration;

use canal::testing::Daemon;
use canal::{Client, ErrorKind, Guard, Lock, Mode};

use super::{daemon_process, lock};

/// The tokens of the holds of a key.
fn held(daemon: &Daemon, key: &str) -> Vec<u64> {
    let status = Client::connect_to(&daemon.endpoint()).unwrap().status_of(key).unwrap();
    let keys = status.keys.iter().filter(|it| it.key == key);
    keys.flat_map(|key| &key.holders).map(|holder| holder.token).collect()
}

#[test]
fn a_guard_releases_when_it_is_dropped_or_told_to() {
    let daemon = Daemon::start().unwrap();
    let guard = lock(&daemon, "db").acquire().unwrap();
    let first = guard.token();
    assert_eq!(held(&daemon, "db"), [first]);
    drop(guard);
    assert!(held(&daemon, "db").is_empty());
    let guard = lock(&daemon, "db").acquire().unwrap();
    assert!(guard.token() > first);
    guard.release().unwrap();
    assert!(held(&daemon, "db").is_empty());
}

#[test]
fn each_guard_releases_its_own_hold_in_any_order() {
    let daemon = daemon_process();
    let take = || lock(&daemon, "db").per(4).acquire().unwrap();
    let mut guards: Vec<Guard> = (0..4).map(|_| take()).collect();
    assert_eq!(guards.iter().map(|guard| guard.slot().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for at in [1, 0, 1, 0] {
        drop(guards.remove(at));
        let mut left: Vec<u64> = guards.iter().map(Guard::token).collect();
        left.sort_unstable();
        let mut held = held(&daemon, "db");
        held.sort_unstable();
        assert_eq!(held, left);
    }
    let log = std::fs::read_to_string(daemon.dir().join("daemon.log")).unwrap();
    assert!(!log.contains("by force"), "its owner released it: {log}");
}

#[test]
fn several_keys_are_held_and_released_together() {
    let daemon = Daemon::start().unwrap();
    let lock = lock(&daemon, "a").slots(4).count(2).and("b").per(3).buckets(2);
    let guard = lock.and_read("c").and_write("d").acquire().unwrap();
    let [a, b, c, d] = guard.keys() else { panic!("{:?}", guard.keys()) };
    assert_eq!((a.mode, b.mode, c.mode, d.mode), {
        (Mode::Counted, Mode::Counted, Mode::Read, Mode::Write)
    });
    assert_eq!((a.slots.len(), a.slots[0].bucket, b.slots[0].bucket), (2, None, Some(0)));
    assert_eq!((guard.slots(), guard.slot()), (vec![0, 1, 0], None));
    for key in ["a", "b", "c", "d"] {
        assert_eq!(held(&daemon, key), [guard.token()], "{key}");
    }
    guard.release().unwrap();
    for key in ["a", "b", "c", "d"] {
        assert!(held(&daemon, key).is_empty(), "{key}");
    }
}

/// This is what the documentation of `Lock` promises about threads.
#[test]
fn threads_of_one_process_are_one_session() {
    let daemon = Daemon::start().unwrap();
    let _slots = lock(&daemon, "slots").slots(1).acquire().unwrap();
    let _per = lock(&daemon, "per").per(1).acquire().unwrap();
    let _write = Lock::write("write").endpoint(&daemon.endpoint()).acquire().unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let shared = lock(&daemon, "slots").slots(1).acquire().unwrap();
            assert_eq!(shared.slot(), Some(0), "it shares the slot");
            let error = lock(&daemon, "per").per(1).acquire().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
            assert!(error.cycle().is_empty());
            let write = Lock::write("write").endpoint(&daemon.endpoint());
            drop(write.wait(Duration::ZERO).acquire().unwrap());
        });
        thread.join().unwrap();
    });
    assert_eq!(held(&daemon, "slots").len(), 1, "the other thread's is released, this one is not");
}

#[test]
fn guards_go_from_thread_to_thread() {
    let daemon = Daemon::start().unwrap();
    let guard = thread::scope(|scope| {
        scope.spawn(|| lock(&daemon, "db").acquire().unwrap()).join().unwrap()
    });
    assert_eq!(held(&daemon, "db"), [guard.token()], "the end of the thread does not matter");
    thread::spawn(move || drop(guard)).join().unwrap();
    assert!(held(&daemon, "db").is_empty());
}

#[test]
fn a_lock_that_was_broken_by_force_is_lost_at_the_release() {
    let daemon = daemon_process();
    let guard = lock(&daemon, "db").acquire().unwrap();
    let mut canal = std::process::Command::new(env!("CARGO_BIN_EXE_canal"));
    let token = guard.token().to_string();
    canal.args(["release", "--force", "--token", &token]).env("CANAL_SOCKET", daemon.socket());
    assert!(canal.output().unwrap().status.success());
    assert!(!guard.is_lost(), "nobody told it");
    assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
    let log = std::fs::read_to_string(daemon.dir().join("daemon.log")).unwrap();
    assert!(log.contains("by force"), "{log}");
}

#[test]
fn a_command_that_a_guard_is_passed_to_is_of_its_session() {
    let daemon = Daemon::start().unwrap();
    let guard = Lock::write("db").endpoint(&daemon.endpoint()).acquire().unwrap();
    let code = |pass: bool| {
        let mut canal = std::process::Command::new(env!("CARGO_BIN_EXE_canal"));
        canal.args(["run", "-q", "-n", "--write", "db/x", "--", "true"]);
        canal.env("CANAL_SOCKET", daemon.socket());
        if pass {
            guard.pass_to(&mut canal);
        }
        canal.output().unwrap().status.code()
    };
    assert_eq!(code(false), Some(75));
    assert_eq!(code(true), Some(0));
}
