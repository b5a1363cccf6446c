//! The supervisor as a separate process, and how tests start it.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use canal::client::Fate;
use canal::client::hold_monitor::LostHold;
use canal::protocol::OnLost;
use canal::run::nodes::Line;
use canal::run::{ChildChannel, Limits, OwnCode, SupervisorHooks, supervise};
use canal::sys::deadline_page::Reader;
use canal::sys::fds;
use canal::sys::process::user::SignalRefused;
use canal::sys::process::{exec, startup};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait_until;

/// The program whose daemons the supervisor spares.
pub(crate) const CANAL: &str = env!("CARGO_BIN_EXE_canal");

/// Supervision without a daemon: it only prints losses.
struct Nobody;

impl SupervisorHooks for Nobody {
    fn can_be_lost(&self) -> bool {
        false
    }

    fn lost(&self, lost: &LostHold) {
        eprintln!("lost token {}", lost.token);
    }

    fn overrun(&self) {
        eprintln!("overran");
    }

    fn refused(&self, refused: &SignalRefused) {
        eprintln!("{refused}");
    }

    fn is_daemon(&self, pid: Pid) -> bool {
        canal::client::is_on_demand_daemon(pid.as_raw().unsigned_abs(), Some(Path::new(CANAL)))
    }

    fn ended(&self) {}

    fn ask(&self, _token: u64) -> Option<Fate> {
        None
    }

    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn say(&self, _line: &Line) {}
}

/// Runs the supervisor with the options `--max-run MS`, `--kill-after MS`, `--with-children`,
/// `--refused CODE`, `--when FILE` and `--page FD:FD`, and a script.
pub(crate) fn play(arguments: &[String]) -> u8 {
    let mut limits = Limits {
        max_run: None,
        kill_after: None,
        signal: Signal::SIGTERM,
        with_children: false,
        on_lost: OnLost::Kill,
    };
    let mut page = None;
    let mut refused = None;
    let mut when = None;
    let mut script = "";
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().map_or("", String::as_str);
        match argument.as_str() {
            "--max-run" => limits.max_run = Some(milliseconds(value())),
            "--kill-after" => limits.kill_after = Some(milliseconds(value())),
            "--with-children" => limits.with_children = true,
            "--refused" => refused = value().parse().ok(),
            "--when" => when = Some(value()),
            "--page" => page = value().split_once(':').map(adopt),
            other => script = other,
        }
    }
    let child = |child_channel: ChildChannel| {
        if let Some(file) = when {
            wait_until("the lock is free", || Path::new(file).exists());
        }
        match refused {
            Some(code) => code,
            None => become_shell(child_channel, limits.with_children, page.as_ref(), script),
        }
    };
    match supervise(&limits, &Nobody, None, child) {
        Ok(ended) => ended.pass_on(),
        Err(error) => {
            eprintln!("stay: {error}");
            OwnCode::Failed.number()
        }
    }
}

fn milliseconds(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap_or(0))
}

/// The deadline page and the liveness line that this program inherited.
fn adopt((page, line): (&str, &str)) -> Reader {
    let adopt = |number: &str| fds::adopt(number.parse().unwrap()).unwrap();
    Reader::open(adopt(page), adopt(line)).unwrap()
}

fn become_shell(
    child_channel: ChildChannel,
    with_children: bool,
    page: Option<&Reader>,
    script: &str,
) -> u8 {
    let kept: Option<OwnedFd> =
        with_children.then(|| std::io::pipe().ok()).flatten().map(|(_, writer)| writer.into());
    child_channel.granted(kept.as_ref(), page.map(|page| (page, 7))).unwrap();
    startup::restore();
    let argv = ["sh", "-c", script].map(OsString::from);
    let error = exec::exec(Path::new("/bin/sh"), &argv, &[]);
    child_channel.not_begun();
    eprintln!("exec: {error}");
    OwnCode::NotExecutable.number()
}

/// This program as a scene without a controlling terminal.
pub(crate) fn scene(options: &[&str], script: &str) -> Command {
    // It gets its own session; otherwise it would have the terminal of the tests.
    let mut command = Command::new("setsid");
    command.arg("--wait").args(words(options, script));
    command.stdin(Stdio::null());
    command
}

/// The arguments that start a scene.
pub(crate) fn words(options: &[&str], script: &str) -> Vec<OsString> {
    let mut words = vec![std::env::current_exe().unwrap().into_os_string(), "--scene".into()];
    words.extend(options.iter().map(OsString::from));
    words.push(script.into());
    words
}

/// The exit code of a scene.
pub(crate) fn code(options: &[&str], script: &str) -> Option<i32> {
    output(options, script).status.code()
}

pub(crate) fn output(options: &[&str], script: &str) -> Output {
    let output = scene(options, script).output().unwrap();
    print_words(&output.stderr);
    output
}

fn print_words(stderr: &[u8]) {
    let text = String::from_utf8_lossy(stderr);
    if !text.is_empty() {
        eprintln!("{text}");
    }
}

/// A scene that runs while the test continues.
pub(crate) struct Running {
    pub(crate) child: Child,
}

impl Running {
    /// Starts a scene and waits until its command has written a line. Returns the line.
    pub(crate) fn start(options: &[&str], script: &str) -> (Self, String) {
        Self::of(scene(options, script))
    }

    /// Does the same for a given command of a scene.
    pub(crate) fn of(mut scene: Command) -> (Self, String) {
        let mut child = scene.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut byte = [0];
        let output = child.stdout.as_mut().unwrap();
        while output.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            line.push(char::from(byte[0]));
        }
        (Self { child }, line)
    }

    /// The parent; `setsid` becomes it.
    pub(crate) fn parent(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.parent(), signal).unwrap();
    }

    /// The rest of its output, and its status.
    pub(crate) fn finish(self) -> Output {
        self.child.wait_with_output().unwrap()
    }
}

/// Whether a process exists and is not a zombie.
pub(crate) fn lives(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" Z")))
}
