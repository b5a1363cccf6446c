//! Tests a daemon whose process works, sleeps or is stopped while it owes a message.
//!
//! The kernel reports which process listens. Here that is a shell, which behaves as the test
//! requires and answers nothing. The test may accept and answer in its place.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};

use super::*;
use crate::client::{Limits, Options};
use canal_sys::pidfd::Pidfd;
use canal_sys::process::{Activity, activity};
use canal_sys::rerun::{self, wait_for_lines, wait_until};
use fake::{grant, progress};

const SCENE: &str = "client::tests::busy::listens_and_becomes_a_shell";

/// The variable that contains the shell's script.
const SCRIPT: &str = "CANAL_TEST_SCRIPT";

#[test]
#[ignore = "a scene"]
fn listens_and_becomes_a_shell() {
    if rerun::plays(SCENE) {
        // Room for one connection that is not accepted.
        listen(&std::io::stdin(), Backlog::new(0).unwrap()).unwrap();
        let script = std::env::var(SCRIPT).unwrap();
        panic!("{}", Command::new("/bin/sh").args(["-c", &script]).exec());
    }
}

/// The process of a daemon.
struct Process {
    child: Child,
    listener: UnixListener,
}

impl Process {
    /// Starts a process that listens at this place and runs `script`.
    fn start(scratch: &Scratch, script: &str, does: Activity) -> Self {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        bind(socket.as_raw_fd(), &UnixAddr::new(&scratch.place.socket).unwrap()).unwrap();
        let ready = scratch.dir.path().join("ready");
        let script = format!(r#"echo >"$READY"; {script}"#);
        let stdin: OwnedFd = socket.try_clone().unwrap();
        let child = rerun::command(SCENE, "")
            .env(SCRIPT, script)
            .env("READY", &ready)
            .stdin(stdin)
            .spawn()
            .unwrap();
        wait_for_lines(&ready, 1);
        let process = Self { child, listener: socket.into() };
        process.until(does);
        process
    }

    fn busy(scratch: &Scratch) -> Self {
        Self::start(scratch, "while :; do :; done", Activity::Busy)
    }

    fn asleep(scratch: &Scratch) -> Self {
        Self::start(scratch, "exec sleep 600", Activity::Idle)
    }

    fn stopped(scratch: &Scratch) -> Self {
        let process = Self::busy(scratch);
        Pidfd::open(process.child.id()).unwrap().signal(Signal::SIGSTOP).unwrap();
        process.until(Activity::Stopped);
        process
    }

    fn until(&self, does: Activity) {
        wait_until(&format!("it is {does:?}"), || activity(self.child.id()) == does);
    }

    /// Writes its pid to the file where a daemon writes it.
    fn takes_the_lock(&self, scratch: &Scratch) {
        let lock = scratch.dir.path().join("lock");
        std::fs::write(lock, format!("{}\n", self.child.id())).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

const ANSWER: Duration = Duration::from_millis(100);

/// Longer than the time of a daemon that is not busy.
const LATE: Duration = Duration::from_millis(400);

/// A client that allows a busy daemon `busy`, and any other one a short time.
fn options(busy: Duration) -> Options {
    Options { limits: Limits::of(ANSWER, busy), ..patient() }
}

type Call = fn(&mut Client) -> Result<(), ClientError>;

/// A call with one answer, and one that waits.
const CALLS: [Call; 2] = [
    |client| client.status(&StatusQuery::default()).map(drop),
    |client| client.acquire(&request(Some(1)), None, &mut |_| Ok(None)).map(drop),
];

#[test]
fn a_daemon_that_works_may_take_longer() {
    let scratch = Scratch::new();
    let process = Process::busy(&scratch);
    let listener = process.listener.try_clone().unwrap();
    let daemon = std::thread::spawn(move || {
        let mut peer = accept(&listener);
        assert_eq!(peer.call().0, "Status");
        std::thread::sleep(LATE);
        peer.reply(status(7));
        assert_eq!(peer.call().0, "Acquire");
        std::thread::sleep(LATE);
        peer.go_on(progress(1));
        // The daemon also owes the end of the wait.
        std::thread::sleep(LATE);
        peer.reply(grant());
    });
    let mut client = Client::connect(&scratch.place, options(BOUND)).unwrap();
    for call in CALLS {
        call(&mut client).unwrap();
    }
    daemon.join().unwrap();
}

#[test]
fn a_daemon_that_works_for_ever_is_silent_in_the_end() {
    let scratch = Scratch::new();
    let process = Process::busy(&scratch);
    let longest = Duration::from_secs(1);
    for call in CALLS {
        let mut client = Client::connect(&scratch.place, options(longest)).unwrap();
        let before = Instant::now();
        let error = call(&mut client).unwrap_err();
        let pid = process.child.id();
        assert!(matches!(error, ClientError::Silent { pid: it, .. } if it == pid), "{error:?}");
        assert!(before.elapsed() >= longest);
        drop(process.listener.accept());
    }
}

#[test]
fn a_daemon_that_sleeps_or_is_stopped_is_silent_soon() {
    let kinds = [(Process::asleep as fn(&Scratch) -> Process, 'S'), (Process::stopped, 'T')];
    for (start, letter) in kinds {
        let scratch = Scratch::new();
        let process = start(&scratch);
        for call in CALLS {
            let mut client = Client::connect(&scratch.place, options(2 * BOUND)).unwrap();
            let before = Instant::now();
            let error = call(&mut client).unwrap_err();
            let is_so = matches!(error, ClientError::Silent { state, .. } if state == letter);
            assert!(is_so, "{error:?}");
            let elapsed = before.elapsed();
            assert!((ANSWER..BOUND).contains(&elapsed), "{elapsed:?}");
            drop(process.listener.accept());
        }
    }
}

#[test]
fn a_daemon_that_works_may_take_longer_to_accept_a_connection() {
    let scratch = Scratch::new();
    let process = Process::busy(&scratch);
    process.takes_the_lock(&scratch);
    let _first = UnixStream::connect(&scratch.place.socket).unwrap();
    let listener = process.listener.try_clone().unwrap();
    let daemon = std::thread::spawn(move || {
        std::thread::sleep(LATE);
        drop(accept(&listener));
        accept(&listener)
    });
    Client::connect(&scratch.place, options(BOUND)).unwrap();
    daemon.join().unwrap();
}

#[test]
fn a_daemon_that_sleeps_and_accepts_nobody_is_silent_soon() {
    let scratch = Scratch::new();
    let process = Process::asleep(&scratch);
    process.takes_the_lock(&scratch);
    let _first = UnixStream::connect(&scratch.place.socket).unwrap();
    let before = Instant::now();
    let error = Client::connect(&scratch.place, options(2 * BOUND)).unwrap_err();
    assert!(matches!(error, ClientError::Silent { state: 'S', .. }), "{error:?}");
    let elapsed = before.elapsed();
    assert!((ANSWER..BOUND).contains(&elapsed), "{elapsed:?}");
}
