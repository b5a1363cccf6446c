//! Signals without a terminal.

use std::os::unix::process::ExitStatusExt;

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

pub(crate) fn a_waiting_child_dies_by_the_signal_too() {
    let mut child = scene(&["--when", "/nonexistent"], "echo ran").spawn().unwrap();
    let parent = Pid::from_raw(child.id().cast_signed());
    // It has its child, so it handles its signals.
    let children = format!("/proc/{parent}/task/{parent}/children");
    wait_until("there is a child", || {
        std::fs::read_to_string(&children).is_ok_and(|children| !children.is_empty())
    });
    kill(parent, Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
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
