//! Tests of finding a daemon, or none.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use super::*;
use crate::client::Options;
use crate::client::connection::daemon_program;
use canal_sys::rerun;

#[test]
fn without_a_daemon_and_with_no_start_a_client_fails_at_once() {
    let mut scratch = Scratch::new();
    let before = Instant::now();
    let error = Client::connect(&scratch.place, Start::Never).unwrap_err();
    assert!(matches!(&error, ClientError::NoDaemon(place) if **place == scratch.place));
    // A socket without a listener, or a missing directory, also means that no daemon runs.
    drop(scratch.listen());
    rerun::wait_until("nothing listens", || UnixStream::connect(&scratch.place.socket).is_err());
    let error = Client::connect(&scratch.place, Start::Never).unwrap_err();
    assert!(matches!(error, ClientError::NoDaemon(_)), "{error:?}");
    scratch.place.dir.push("missing");
    scratch.place.socket = scratch.place.dir.join("canal.sock");
    let error = Client::connect(&scratch.place, Start::Never).unwrap_err();
    assert!(matches!(error, ClientError::NoDaemon(_)), "{error:?}");
    assert!(before.elapsed() < BOUND);
}

#[test]
fn a_shared_daemon_is_waited_for_and_started_by_root_alone() {
    let mut scratch = Scratch::new();
    scratch.place.rule = Rule::Shared;
    let program = Some("/nonexistent/canal".into());
    let options = Options { start: Start::IfNeeded, program, ..impatient() };
    let before = Instant::now();
    let error = Client::connect(&scratch.place, options).unwrap_err();
    if daemon_program::may_start(&scratch.place) {
        assert!(matches!(error, ClientError::Start(_)), "{error:?}");
    } else {
        assert!(matches!(error, ClientError::NoDaemon(_)), "{error:?}");
        assert!(before.elapsed() >= Duration::from_millis(200));
        assert_eq!(std::fs::read_dir(scratch.dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_directory_in_which_others_can_write_is_refused_with_its_path() {
    for rule in [Rule::Given, Rule::Shared] {
        let mut scratch = Scratch::new();
        scratch.place.rule = rule;
        let _listener = scratch.listen();
        set_permissions(scratch.dir.path(), Permissions::from_mode(0o777)).unwrap();
        let error = Client::connect(&scratch.place, Start::Never).unwrap_err();
        let ClientError::Place(text) = error else { panic!("{rule:?}: {error:?}") };
        assert!(text.contains(scratch.dir.path().to_str().unwrap()), "{text}");
    }
}

#[test]
fn the_users_own_directory_is_closed_to_others_again() {
    let mut scratch = Scratch::new();
    scratch.place.rule = Rule::PerUser;
    let _listener = scratch.listen();
    set_permissions(scratch.dir.path(), Permissions::from_mode(0o777)).unwrap();
    Client::connect(&scratch.place, Start::Never).unwrap();
    let mode = scratch.dir.path().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}

#[test]
fn a_directory_that_is_a_link_is_refused() {
    for rule in [Rule::Given, Rule::PerUser, Rule::Shared] {
        let mut scratch = Scratch::new();
        scratch.place.rule = rule;
        let _listener = scratch.listen();
        let link = scratch.dir.path().join("link");
        symlink(scratch.dir.path(), &link).unwrap();
        scratch.place.socket = link.join("canal.sock");
        scratch.place.dir = link;
        let error = Client::connect(&scratch.place, Start::Never).unwrap_err();
        assert!(matches!(&error, ClientError::Place(text) if text.contains("link")), "{error:?}");
    }
}

#[test]
fn a_daemon_that_accepts_no_connection_is_silent_and_named_by_its_lock() {
    let scratch = Scratch::new();
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&scratch.place.socket).unwrap()).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    // A queue of length 0 has room for one connection.
    let _first = UnixStream::connect(&scratch.place.socket).unwrap();
    std::fs::write(scratch.dir.path().join("lock"), "4194999\n").unwrap();
    let before = Instant::now();
    let error = Client::connect(&scratch.place, impatient()).unwrap_err();
    assert!(matches!(error, ClientError::Silent { pid: 4_194_999, state: '?' }), "{error:?}");
    let elapsed = before.elapsed();
    assert!(elapsed >= Duration::from_millis(200), "{elapsed:?}");
    assert!(elapsed < BOUND, "{elapsed:?}");
}

#[test]
fn a_client_stands_in_a_full_line_until_it_moves() {
    let scratch = Scratch::new();
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&scratch.place.socket).unwrap()).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let first = UnixStream::connect(&scratch.place.socket).unwrap();
    let daemon = std::thread::spawn({
        let listener = std::os::unix::net::UnixListener::from(listener);
        move || {
            drop(accept(&listener));
            let mut peer = accept(&listener);
            peer.call();
            peer.reply(status(1));
        }
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    assert_eq!(client.status(&StatusQuery::default()).unwrap().daemon.pid, 1);
    daemon.join().unwrap();
    drop(first);
}
