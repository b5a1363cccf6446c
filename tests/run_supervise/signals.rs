//! Supervision and signals without a terminal.

use std::os::unix::process::ExitStatusExt;
use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};

use crate::scene::{Running, lives, scene};
use crate::wait_until;

pub(crate) fn a_signal_to_the_parent_reaches_the_command() {
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
        Signal::SIGWINCH,
    ] {
        let number = signal as i32;
        let script =
            format!("trap 'echo got; exit 9' {number}; echo ready; while :; do sleep 0.01; done");
        let (running, line) = Running::start(&[], &script);
        assert_eq!(line, "ready");
        running.signal(signal);
        let output = running.finish();
        assert_eq!(output.stdout, b"got\n", "{signal}");
        assert_eq!(output.status.code(), Some(9), "{signal}");
    }
}

/// A scene whose child waits for its lock forever, and the pid of that child.
fn waiting(options: &[&str]) -> (Child, String) {
    let options = [options, &["--when", "/nonexistent"]].concat();
    let scene = scene(&options, "echo ran").spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", scene.id());
    let mut child = String::new();
    // It has its child, so it handles its signals.
    wait_until("there is a child", || {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        child = text.trim().to_owned();
        !child.is_empty()
    });
    (scene, child)
}

pub(crate) fn a_waiting_child_dies_by_the_signal_too() {
    let (mut scene, _) = waiting(&[]);
    kill(Pid::from_raw(scene.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(scene.wait().unwrap().signal(), Some(libc::SIGTERM));
}

pub(crate) fn a_waiting_child_ends_with_its_killed_parent() {
    for options in [&[][..], &["--max-run", "60000"], &["--with-children"]] {
        let (mut scene, child) = waiting(options);
        scene.kill().unwrap();
        assert_eq!(scene.wait().unwrap().signal(), Some(libc::SIGKILL));
        wait_until("the child has ended", || !lives(&child));
    }
}

pub(crate) fn without_a_terminal_the_command_leads_a_group() {
    let (running, command) = Running::start(&[], "echo $$; exec sleep 60");
    let command = Pid::from_raw(command.parse().unwrap());
    assert_eq!(getpgid(Some(command)), Ok(command));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.finish().status.signal(), Some(libc::SIGTERM));
}

pub(crate) fn a_command_outlives_its_killed_parent() {
    let (mut running, command) = Running::start(&["--max-run", "60000"], "echo $$; exec sleep 60");
    running.signal(Signal::SIGKILL);
    assert_eq!(running.child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(lives(&command));
    kill(Pid::from_raw(command.parse().unwrap()), Signal::SIGKILL).unwrap();
}
