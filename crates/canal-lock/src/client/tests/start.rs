//! Tests of starting a daemon: here, a script that only records its start.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use rustix::fs::{FlockOperation, flock};

use super::*;
use crate::client::Options;
use crate::client::connection::start_daemon::{Starts, attempt};
use canal_sys::pidfd::Pidfd;
use canal_sys::rerun::{BOUND, wait_for_lines, wait_until};

/// The directory of the program that [`starting`] writes, as an expression for a shell in it.
const SCRATCH: &str = "${0%/*}";
const UNTIL_LISTENING: &str = r#"while ! [ -S "${0%/*}/canal.sock" ]; do sleep 0.01; done"#;

fn starting(scratch: &Scratch, script: &str) -> Options {
    let program: PathBuf = scratch.dir.path().join("program");
    // Another process writes the file. Otherwise a fork of another test could keep our descriptor
    // open for writing, and the kernel would not execute the file (ETXTBSY).
    let written = std::process::Command::new("/bin/sh")
        .args(["-c", r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 700 "$0""#])
        .args([program.as_os_str(), script.as_ref()])
        .status();
    assert!(written.unwrap().success());
    Options { program: Some(program), ..Options::from(Start::IfNeeded) }
}

#[test]
fn the_message_of_a_daemon_that_cannot_start_is_the_error() {
    let scratch = Scratch::new();
    let options = starting(&scratch, "echo no such luck >&3; exit 1");
    let error = Client::connect(&scratch.place, options).unwrap_err();
    assert!(matches!(&error, ClientError::Start(text) if text == "no such luck"), "{error:?}");
}

#[test]
fn a_program_that_is_not_there_is_the_error() {
    let scratch = Scratch::new();
    let program = scratch.dir.path().join("missing");
    let options = Options { program: Some(program), ..Options::from(Start::IfNeeded) };
    let error = Client::connect(&scratch.place, options).unwrap_err();
    assert!(matches!(&error, ClientError::Start(text) if text.contains("missing")), "{error:?}");
}

#[test]
fn a_missing_directory_is_made_private() {
    let mut scratch = Scratch::new();
    let options = starting(&scratch, "echo enough >&3");
    scratch.place.dir.push("made");
    scratch.place.socket = scratch.place.dir.join("canal.sock");
    Client::connect(&scratch.place, options).unwrap_err();
    let mode = scratch.place.dir.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}

#[test]
fn of_many_clients_at_once_one_starts_the_daemon_and_all_are_connected() {
    const CLIENTS: usize = 40;
    let scratch = Scratch::new();
    let starts = scratch.dir.path().join("starts");
    // The daemon counts as up when the test listens in its place.
    let script = format!(r#"echo "$@" >>"{SCRATCH}/starts"; {UNTIL_LISTENING}"#);
    // However slow the machine is, no client takes the start for stuck.
    let mut options = starting(&scratch, &script);
    options.limits.idle = BOUND;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (place, options) = (scratch.place.clone(), options.clone());
            std::thread::spawn(move || Client::connect(&place, options).map(drop))
        })
        .collect();
    wait_for_lines(&starts, 1);
    let listener = scratch.listen();
    for _ in 0..CLIENTS {
        listener.accept().unwrap();
    }
    for client in clients {
        client.join().unwrap().unwrap();
    }
    let socket = scratch.place.socket.display();
    let expected = format!("daemon --on-demand --socket {socket}\n");
    assert_eq!(std::fs::read_to_string(&starts).unwrap(), expected);
}

#[test]
fn a_daemon_that_does_not_listen_is_tried_again_until_one_does() {
    let scratch = Scratch::new();
    let starts = scratch.dir.path().join("starts");
    // Like a daemon that lost against one whose socket was removed.
    let script = format!(r#"echo >>"{SCRATCH}/starts"; echo gave way >&3"#);
    let options = starting(&scratch, &script);
    let client = std::thread::spawn({
        let place = scratch.place.clone();
        move || Client::connect(&place, options).map(drop)
    });
    // That is not a failure, however often it happens.
    wait_for_lines(&starts, 5);
    let _listener = scratch.listen();
    client.join().unwrap().unwrap();
}

#[test]
fn daemons_that_die_at_once_are_started_three_times_and_the_last_one_is_quoted() {
    let scratch = Scratch::new();
    let starts = scratch.dir.path().join("program.starts");
    let count = r#"wc -l <"$0.starts" | sed 's/^/no luck in attempt /' >&2"#;
    let script = format!(r#"echo >>"$0.starts"; {count}; echo hint: luck >&2; exit 3"#);
    let options = starting(&scratch, &script);
    let error = Client::connect(&scratch.place, options).unwrap_err();
    assert_eq!(std::fs::read_to_string(&starts).unwrap().lines().count(), 3);
    let ClientError::Start(text) = error else { panic!("{error:?}") };
    let log = scratch.dir.path().join("daemon.log");
    assert!(text.contains(&format!("{}: no luck in attempt 3\nhint: ", log.display())), "{text}");
}

#[test]
fn a_line_of_an_earlier_daemon_is_not_taken_for_the_reason() {
    let scratch = Scratch::new();
    std::fs::write(scratch.dir.path().join("daemon.log"), "all is well\n").unwrap();
    let options = starting(&scratch, "exit 3");
    let error = Client::connect(&scratch.place, options).unwrap_err();
    let ClientError::Start(text) = error else { panic!("{error:?}") };
    assert!(!text.contains("all is well") && text.contains("wrote nothing to"), "{text}");
}

#[test]
fn a_starter_that_dies_leaves_the_start_to_the_next() {
    let scratch = Scratch::new();
    let starts = scratch.dir.path().join("starts");
    let options = starting(&scratch, &format!(r#"echo >>"{SCRATCH}/starts"; echo no >&3"#));
    let lock = std::fs::File::create(scratch.dir.path().join("start.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let client = std::thread::spawn({
        let place = scratch.place.clone();
        move || Client::connect(&place, options).map(drop)
    });
    // Enough time for many attempts.
    let began = Instant::now();
    wait_until("a while passed", || began.elapsed() > Duration::from_millis(100));
    assert!(!starts.exists());
    drop(lock);
    let error = client.join().unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Start(_)), "{error:?}");
    wait_for_lines(&starts, 1);
}

#[test]
fn a_stopped_starter_does_not_keep_others_from_starting() {
    let scratch = Scratch::new();
    let starts = scratch.dir.path().join("starts");
    let script = format!(r#"echo >>"{SCRATCH}/starts"; {UNTIL_LISTENING}"#);
    let mut options = starting(&scratch, &script);
    options.limits.idle = Duration::from_secs(1);
    let lock = std::fs::File::create(scratch.dir.path().join("start.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (place, options) = (scratch.place.clone(), options.clone());
            std::thread::spawn(move || Client::connect(&place, options).map(drop))
        })
        .collect();
    wait_for_lines(&starts, 1);
    let _listener = scratch.listen();
    for client in clients {
        client.join().unwrap().unwrap();
    }
}

#[test]
fn a_daemon_that_has_come_up_is_connected_to_at_once() {
    let scratch = Scratch::new();
    let starts = scratch.dir.path().join("starts");
    let script = format!(r#"echo >>"{SCRATCH}/starts"; {UNTIL_LISTENING}"#);
    let options = Options { up: BOUND, ..starting(&scratch, &script) };
    let place = scratch.place.clone();
    let starter = std::thread::spawn(move || {
        attempt(&place, &options, Duration::ZERO, &mut Starts::default(), &mut None)
    });
    wait_for_lines(&starts, 1);
    let _listener = scratch.listen();
    let attempt = starter.join().unwrap();
    assert!(matches!(attempt, Ok(Some(_))), "{attempt:?}");
}

#[test]
fn a_daemon_that_hangs_as_it_comes_up_is_given_up_within_the_wait_of_the_request() {
    let seconds = |wait_ms| Options::from(Start::IfNeeded).of_wait(wait_ms).up.as_secs();
    assert_eq!([None, Some(0), Some(5_000), Some(60_000)].map(seconds), [10, 2, 5, 10]);
    let scratch = Scratch::new();
    let options = starting(&scratch, r#"echo $$ >"${0%/*}/pid"; exec sleep 600"#);
    let options = Options { up: Duration::from_millis(100), ..options };
    let error = Client::connect(&scratch.place, options).unwrap_err();
    assert!(error.to_string().contains("is not ready after"), "{error}");
    let pid = wait_for_lines(&scratch.dir.path().join("pid"), 1);
    Pidfd::open(pid.trim().parse().unwrap()).unwrap().signal(Signal::SIGKILL).unwrap();
}
