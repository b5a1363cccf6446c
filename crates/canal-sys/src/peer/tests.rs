use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use nix::unistd::{Gid, getegid, geteuid, getgroups, setgroups};

use super::*;
use crate::rerun::{self, BOUND};

const SCENE: &str = "peer::tests::connects";

#[test]
#[ignore = "a scene of the tests below"]
fn connects() {
    if rerun::plays(SCENE) {
        let mut stream = UnixStream::connect(std::env::var_os("SOCKET").unwrap()).unwrap();
        // Waits until the other end closes the connection.
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

/// A connection from another process, the time at which it was accepted, and the process.
fn connection() -> (UnixStream, u64, Child) {
    connection_of(None)
}

/// Like [`connection`], with a process in these supplementary groups.
fn connection_of(groups: Option<Vec<Gid>>) -> (UnixStream, u64, Child) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut command = rerun::command(SCENE, "");
    if let Some(groups) = groups {
        // SAFETY: a system call on memory that was allocated before the fork.
        unsafe { command.pre_exec(move || Ok(setgroups(&groups)?)) };
    }
    let child = command.env("SOCKET", &path).stdout(Stdio::null()).spawn().unwrap();
    let (stream, _) = listener.accept().unwrap();
    (stream, ticks_now(), child)
}

#[test]
fn the_peer_is_the_process_that_connected() {
    let (stream, accepted, mut child) = connection();
    let found = credentials(stream.as_fd()).unwrap();
    let ids = (geteuid().as_raw(), getegid().as_raw());
    assert_eq!(found, Credentials { pid: child.id(), uid: ids.0, gid: ids.1 });

    let peer = pidfd(stream.as_fd(), accepted).unwrap().unwrap();
    assert_eq!(peer.pid(), Some(child.id()));
    let by_number = by_number(found.pid, accepted).unwrap().unwrap();
    assert_eq!(by_number.pid(), Some(child.id()));
    assert_eq!(by_number.inode(), peer.inode());

    drop(stream);
    child.wait().unwrap();
    assert!(peer.has_ended());
    assert!(by_number.has_ended());
}

#[test]
fn the_groups_are_those_of_the_connecting_process_however_many() {
    let sets = if geteuid().is_root() {
        // Up to as many as the kernel allows.
        [0, 1, 3000, GROUPS_MAX].map(|count| {
            let numbers = 70_000..70_000 + u32::try_from(count).unwrap();
            Some(numbers.map(Gid::from_raw).collect::<Vec<_>>())
        })
    } else {
        [const { None }; 4]
    };
    for set in sets {
        let expected = set.clone().unwrap_or_else(|| getgroups().unwrap());
        let (stream, _, mut child) = connection_of(set);
        let mut found = groups(stream.as_fd()).unwrap();
        found.sort_unstable();
        let mut expected: Vec<u32> = expected.into_iter().map(Gid::as_raw).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
        stream.shutdown(std::net::Shutdown::Both).unwrap();
        child.wait().unwrap();
        // The kernel stores the groups with the socket, not with the process.
        assert_eq!(groups(stream.as_fd()).unwrap().len(), expected.len());
    }
}

#[test]
fn a_peer_that_was_reaped_is_gone_or_has_ended() {
    let (stream, accepted, mut child) = connection();
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    child.wait().unwrap();
    // Linux 6.16 still returns its pidfd.
    let peer = pidfd(stream.as_fd(), accepted).unwrap();
    assert!(peer.is_none_or(|peer| peer.has_ended() && peer.pid().is_none()));
    let number = credentials(stream.as_fd()).unwrap().pid;
    assert_eq!(number, child.id(), "the number stays, though it names nobody");
    assert!(by_number(number, accepted).unwrap().is_none());
}

#[test]
fn a_zombie_peer_has_ended() {
    let (stream, accepted, mut child) = connection();
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    let watch = Pidfd::open(child.id()).unwrap();
    assert!(watch.wait_end(BOUND));
    for peer in [pidfd(stream.as_fd(), accepted), by_number(child.id(), accepted)] {
        let peer = peer.unwrap().expect("it is not reaped");
        assert!(peer.has_ended());
        assert_eq!(peer.pid(), Some(child.id()));
    }
    child.wait().unwrap();
}

#[test]
fn a_process_that_started_after_the_connection_is_another_process() {
    let own = std::process::id();
    let started = process::started(own).unwrap();
    assert!(by_number(own, started - 1).unwrap().is_none());
    assert!(by_number(own, started).unwrap().is_some());
}

#[test]
fn a_peer_without_a_number_cannot_be_known_on_an_old_kernel() {
    let error = by_number(0, ticks_now()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn ticks_are_what_start_times_are_counted_in() {
    let before = ticks_now();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let after = ticks_now();
    let started = process::started(child.id()).unwrap();
    child.wait().unwrap();
    assert!((before..=after).contains(&started), "{before} {started} {after}");
}

const OLD: &str = "peer::tests::asks_an_old_kernel";

#[test]
#[ignore = "a scene of an_old_kernel_tells_by_number"]
fn asks_an_old_kernel() {
    if rerun::plays(OLD) {
        let (one, _other) = UnixStream::pair().unwrap();
        let found = |ticks| pidfd(one.as_fd(), ticks).unwrap();
        assert_eq!(found(ticks_now()).unwrap().pid(), Some(std::process::id()));
        // The time matters only in the lookup by pid.
        assert!(found(0).is_none());
        println!("ASKED");
    }
}

#[test]
fn an_old_kernel_tells_by_number() {
    let output = rerun::run(OLD, "export CANAL_KERNEL=5.10;");
    assert!(String::from_utf8_lossy(&output.stdout).contains("ASKED"), "{output:?}");
}
