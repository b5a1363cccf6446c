//! Signals, idleness, the service manager, and a second daemon.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Idler, mutex, mutex_for};

#[test]
fn sighup_is_ignored_and_sigterm_keeps_the_holds() {
    let mut daemon = Daemon::start();
    let _holder = daemon.hold(1, "a");
    daemon.signal(Signal::SIGHUP);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        assert_eq!(daemon.use_of("a"), (1, 0));
        daemon.signal(signal);
        assert_eq!(daemon.end(), Some(0));
        daemon.run(|_| {});
    }
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn the_daemon_ends_when_idle_and_not_while_a_lock_is_held() {
    // Try a longer time if the machine is too slow to hold something within it.
    assert!((0..7).any(|doubled| ends_when_idle(1 << doubled)), "too slow, whatever the time");
}

/// Whether a process held something before the idle time was over. Checks that the daemon then
/// ended after that hold.
fn ends_when_idle(seconds: u64) -> bool {
    let mut daemon = Daemon::folder();
    let begun = std::time::Instant::now();
    daemon.run(|command| {
        command.args(["--idle-exit", &seconds.to_string()]);
    });
    let holder = Idler::start();
    let Some(mut asker) = daemon.try_connect() else { return false };
    asker.send_with("Acquire", mutex_for(1, "a"), &holder.pidfd());
    let held = asker.reply().is_some();
    if !held || begun.elapsed().as_secs() >= seconds {
        return false;
    }
    asker.call("Confirm", json!({ "tag": format!("{:032x}", 1) }));
    drop(asker);
    // Twice the idle time has passed when a wait of that length has ended.
    let mut waiter = daemon.connect();
    let mut parameters = mutex(2, "a");
    parameters["wait_ms"] = (2000 * seconds).into();
    waiter.send("Acquire", parameters);
    assert_eq!(waiter.error().1["reason"], "timeout");
    drop(waiter);
    assert_eq!(daemon.use_of("a"), (1, 0));
    drop(holder);
    assert_eq!(daemon.end(), Some(0));
    true
}

#[test]
fn a_second_daemon_names_the_first_and_changes_nothing() {
    let daemon = Daemon::start();
    let _holder = daemon.hold(1, "a");
    let second = daemon.command().stderr(Stdio::piped()).output().unwrap();
    assert_eq!(second.status.code(), Some(125));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.starts_with("canal: a daemon is already running at "), "{said}");
    assert!(said.contains(&format!("(pid {})", daemon.pid())), "{said}");
    let quiet = daemon.command().arg("--on-demand").stderr(Stdio::piped()).output().unwrap();
    assert_eq!((quiet.status.code(), quiet.stderr.len()), (Some(0), 0));
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn the_daemon_takes_the_socket_of_a_service_manager_and_notifies_readiness() {
    let mut daemon = Daemon::folder();
    let listener = UnixListener::bind(daemon.socket()).unwrap();
    let notify = daemon.path("notify");
    let manager = UnixDatagram::bind(&notify).unwrap();
    let canal = daemon.command();
    let mut command = Command::new("sh");
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";
    command.args(["-c", script]).arg(canal.get_program()).args(canal.get_args());
    command.env("NOTIFY_SOCKET", &notify).stdin(Stdio::from(OwnedFd::from(listener)));
    daemon.adopt(command.spawn().unwrap());
    manager.set_read_timeout(Some(crate::wire::daemon::BOUND)).unwrap();
    let heard = || {
        let mut message = [0; 64];
        let n = manager.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..n]).into_owned()
    };
    assert!(heard().contains("READY=1"));
    daemon.connect().call("Acquire", mutex(1, "a"));
    daemon.connect().call("Stop", json!({}));
    assert!(heard().contains("STOPPING=1"));
    assert_eq!(daemon.end(), Some(0));
    assert!(daemon.socket().exists(), "the socket is the manager's");
}

#[test]
fn files_removed_under_the_daemon_are_recreated() {
    let mut daemon = Daemon::start();
    let _holder = daemon.hold(1, "a");
    for _ in 0..3 {
        // The daemon may recreate files during the removal.
        wait_until("the folder was removed", || fs::remove_dir_all(daemon.path("")).is_ok());
        wait_until("it is reached again", || {
            daemon.try_connect().is_some_and(|mut peer| peer.ask("Status", json!({})).is_some())
        });
        assert_eq!(daemon.use_of("a"), (1, 0));
    }
    // The new lock keeps a second daemon out, like the old one.
    let second = daemon.command().output().unwrap();
    assert_eq!(second.status.code(), Some(125));
    daemon.kill();
    daemon.run(|_| {});
    assert_eq!(daemon.use_of("a"), (1, 0));
}

#[test]
fn the_daemon_works_on_an_older_kernel() {
    let mut daemon = Daemon::folder();
    let old = |command: &mut Command| {
        command.env("CANAL_KERNEL", "5.10");
    };
    daemon.run(old);
    let holder = daemon.hold(1, "a");
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(2, "a"));
    daemon.until_use("a", 1, 1);
    daemon.kill();
    daemon.run(old);
    assert_eq!(daemon.use_of("a"), (1, 1));
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(2, "a"));
    drop(holder);
    waiter.returned("Acquire");
    daemon.connect().call("Release", json!({ "key": "a" }));
    assert_eq!(daemon.use_of("a"), (0, 0));
}

#[test]
fn the_log_of_a_daemon_started_on_demand_is_bounded() {
    let mut daemon = Daemon::folder();
    let (log, before) = (daemon.path("daemon.log"), daemon.path("daemon.log.1"));
    // The log of the previous daemon.
    fs::write(&log, b"x".repeat(1_000_000)).unwrap();
    daemon.run(|command| {
        command.arg("--on-demand").env("CANAL_LOG", "debug");
    });
    let mut peer = daemon.connect();
    let mut tag = 0;
    wait_until("it was rotated", || {
        for _ in 0..100 {
            tag += 1;
            peer.call("Acquire", mutex(tag, &"k".repeat(500)));
            peer.call("Release", json!({ "all": true }));
        }
        before.exists()
    });
    let bytes = |path: &std::path::Path| fs::metadata(path).unwrap().len();
    assert!(bytes(&before) <= 1 << 20 && bytes(&before) > 1 << 19, "{}", bytes(&before));
    assert!(bytes(&log) < 1 << 19, "{}", bytes(&log));
    peer.call("Acquire", mutex(0, "last"));
    wait_until("it goes on", || fs::read_to_string(&log).unwrap().contains("last"));
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_the_daemon() {
    let mut daemon = Daemon::folder();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    daemon.run(|command| {
        command.stderr(full);
    });
    daemon.connect().call("Acquire", mutex(1, "a"));
    let notes = daemon.status().daemon.notes;
    assert!(notes.iter().any(|note| note.ends_with("of its log")), "{notes:?}");
    daemon.kill();
    // A log without a reader does not end the daemon either.
    let (read_end, write_end) = std::io::pipe().unwrap();
    daemon.run(|command| {
        command.arg("-vv").stderr(write_end);
    });
    drop(read_end);
    daemon.connect().call("Acquire", mutex(2, "b"));
}
