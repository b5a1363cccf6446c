//! Supervision with a controlling terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use canal::sys::clock::boottime_ms;
use canal::sys::deadline_page::{Deadline, Writer};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::fd::{AsFd, AsRawFd};

use crate::scene::{lives, words};
use crate::wait_until;

/// A terminal and the leader of its session.
struct Terminal {
    master: File,
    leader: Child,
    seen: String,
}

impl Terminal {
    /// Starts a program as the leader of a session on a new terminal.
    fn start(program: &[std::ffi::OsString]) -> Self {
        let pty = openpty(None, None).unwrap();
        let slave = || pty.slave.try_clone().unwrap();
        let leader = Command::new("setsid")
            .arg("--ctty")
            .args(program)
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        Self { master: pty.master.into(), leader, seen: String::new() }
    }

    /// Starts a shell with job control that runs a script, in which "$@" is a scene.
    fn shell(script: &str, options: &[&str], command: &str) -> Self {
        let mut program: Vec<_> =
            ["bash", "-c", &format!("set -m; {script}"), "bash"].map(Into::into).into();
        program.extend(words(options, command));
        Self::start(&program)
    }

    fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal shows a text. Returns everything shown before it.
    fn wait_for(&mut self, text: &str) -> String {
        wait_until(text, || {
            self.read();
            self.seen.contains(text)
        });
        let at = self.seen.find(text).unwrap();
        let before = self.seen[..at].to_owned();
        self.seen.drain(..at + text.len());
        before
    }

    /// Waits for a line of the form `name=value`. Returns the value.
    fn value(&mut self, name: &str) -> String {
        self.wait_for(&format!("{name}="));
        self.wait_for("\r\n")
    }

    fn read(&mut self) {
        let mut fds = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::from(10_u8)).unwrap() > 0;
        let mut buffer = [0; 1024];
        // EIO: the last process with the terminal has ended.
        if ready && let Ok(count) = self.master.read(&mut buffer) {
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    }
}

const COUNTS: &str = "n=0; trap 'n=$((n+1)); echo int $n' INT; trap 'echo total=$n; exit 3' TERM; \
     echo ready=$$; while :; do sleep 0.01; done";

pub(crate) fn ctrl_c_reaches_the_command_once() {
    let mut terminal = Terminal::start(&words(&["--max-run", "60000"], COUNTS));
    terminal.value("ready");
    terminal.type_in("\x03");
    terminal.wait_for("int 1");
    // Signals that the supervisor forwarded earlier arrive before this one.
    kill(Pid::from_raw(terminal.leader.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(terminal.value("total"), "1");
    assert_eq!(terminal.leader.wait().unwrap().code(), Some(3));
}

pub(crate) fn a_death_by_ctrl_c_is_passed_on() {
    let mut terminal = Terminal::start(&words(&[], "echo ready=1; exec sleep 60"));
    terminal.value("ready");
    terminal.type_in("\x03");
    assert_eq!(terminal.leader.wait().unwrap().signal(), Some(libc::SIGINT));
}

pub(crate) fn the_command_stays_in_the_callers_group_and_only_it_gets_a_signal() {
    let command = "sleep 60 & echo sleep=$!; read -r _ _ _ _ group _ </proc/$$/stat; \
                   echo group=$group; echo parent=$PPID; exec sleep 60";
    let mut terminal = Terminal::shell("\"$@\"; echo ended=$?", &["--max-run", "60000"], command);
    let sleep = terminal.value("sleep");
    let group = terminal.value("group");
    let parent = terminal.value("parent");
    assert_eq!(group, parent);
    kill(Pid::from_raw(parent.parse().unwrap()), Signal::SIGUSR1).unwrap();
    assert_eq!(terminal.value("ended"), (128 + libc::SIGUSR1).to_string());
    assert!(lives(&sleep));
    kill(Pid::from_raw(sleep.parse().unwrap()), Signal::SIGKILL).unwrap();
    assert!(terminal.leader.wait().unwrap().success());
}

pub(crate) fn ctrl_z_stops_the_parent_too_and_fg_continues_both() {
    let script = "\"$@\"; echo stopped=$?; fg >/dev/null; echo ended=$?";
    let command = "echo ready=$$; read -r line; echo read=$line; exit 6";
    let mut terminal = Terminal::shell(script, &["--max-run", "60000"], command);
    terminal.value("ready");
    terminal.type_in("\x1a");
    // The same as without a parent: 128 + SIGTSTP.
    assert_eq!(terminal.value("stopped"), "148");
    // It is in the foreground again: it can read from the terminal.
    terminal.type_in("hello\n");
    assert_eq!(terminal.value("read"), "hello");
    assert_eq!(terminal.value("ended"), "6");
    assert!(terminal.leader.wait().unwrap().success());
}

pub(crate) fn a_command_stopped_past_its_deadline_does_no_more_work() {
    let deadline =
        |from: u64| Deadline { reached_at: from, term_at: from + 1000, kill_at: from + 1200 };
    let later = boottime_ms() + 600_000;
    let writer = Writer::create(1, "engine", "host", deadline(later)).unwrap();
    // The scene inherits these copies.
    let [page, line] = writer.reader.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
    fcntl(&page, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    fcntl(&line, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let descriptors = format!("{}:{}", page.as_raw_fd(), line.as_raw_fd());
    // Waits until both are stopped, and continues only the parent. If the whole group continued,
    // the order of the two would be unknown.
    let script = "\"$@\"; echo stopped=$?; parent=$(jobs -p); echo parent=$parent; read -r _; \
                  kill -CONT $parent; \
                  while kill -0 $parent 2>/dev/null; do sleep 0.01; done; echo ended=1";
    let command = "trap 'echo work=1' TERM CONT; echo ready=$$; kill -STOP $$; echo work=2";
    let mut terminal = Terminal::shell(script, &["--page", &descriptors], command);
    terminal.value("ready");
    terminal.value("parent");
    let began = boottime_ms();
    writer.publish(deadline(began));
    wait_until("the deadline is over", || boottime_ms() > began + 1200);
    terminal.type_in("\n");
    terminal.wait_for("lost token 7");
    let before = terminal.wait_for("ended=1");
    assert!(!before.contains("work="), "{before}");
    terminal.leader.wait().unwrap();
}

pub(crate) fn continuing_the_parent_alone_continues_the_command() {
    let script = "\"$@\"; echo stopped=$?; parent=$(jobs -p); echo parent=$parent; \
                  while kill -0 $parent 2>/dev/null; do sleep 0.01; done";
    let command = "echo ready=$$; kill -STOP $$; echo again=1; exit 0";
    let mut terminal = Terminal::shell(script, &["--max-run", "60000"], command);
    terminal.value("ready");
    assert_eq!(terminal.value("stopped"), (128 + libc::SIGSTOP).to_string());
    let parent: i32 = terminal.value("parent").parse().unwrap();
    kill(Pid::from_raw(parent), Signal::SIGCONT).unwrap();
    assert_eq!(terminal.value("again"), "1");
    terminal.leader.wait().unwrap();
}
