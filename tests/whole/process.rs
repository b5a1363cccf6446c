//! Processes: how they are started, waited for, and ended.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::over;
use crate::spread::Spread;
use crate::world::World;

#[allow(clippy::duplicate_mod, reason = "other folders that a test binary includes have it too")]
#[path = "../bound/mod.rs"]
mod bound;
pub(crate) use bound::BOUND;

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < BOUND, "waited {BOUND:?} in vain until {what}");
        thread::sleep(Duration::from_millis(4));
    }
}

/// Tries with the time `first`, then with ever longer ones, until the machine is quick enough to do
/// within it what a test has to do within it: then the attempt gives something.
#[track_caller]
pub(crate) fn in_time(first: Duration, attempt: impl Fn(Duration) -> Option<()>) {
    let mut times = (0..7).map(|doubled| first * 2u32.pow(doubled));
    assert!(times.any(|time| attempt(time).is_some()), "too slow, whatever the time");
}

/// Says what is skipped and why; not by a macro, whose words of a test that passes are not shown.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Whether the tests run as root; says what is skipped if not.
pub(crate) fn root_or_skip(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skipped(&format!("not root: {what}"));
    }
    root
}

/// Whether a program is installed; says what is skipped if not.
pub(crate) fn installed_or_skip(program: &str, what: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        skipped(&format!("{program} is not installed: {what}"));
    }
    found
}

/// Sends a signal.
#[track_caller]
pub(crate) fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

/// Whether a process lives; a zombie does not.
pub(crate) fn alive(pid: i32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// The state letter of a process.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The children of a process.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The children of a process, where each `canal run` is what it becomes: over an engine it stays as
/// its command's parent.
pub(crate) fn commands(pid: i32) -> Vec<i32> {
    children(pid).into_iter().map(|child| command_of(child).unwrap_or(child)).collect()
}

/// The process that is or becomes the command of a `canal run` that stays as its parent.
fn command_of(pid: i32) -> Option<i32> {
    let stays =
        || fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == crate::world::canal());
    if over::ENGINE && stays() { children(pid).first().copied() } else { None }
}

/// A command to be started in a world.
#[derive(Debug)]
pub(crate) struct Cmd<'w> {
    world: &'w World,
    /// For what is not offered here.
    pub(crate) command: Command,
    stdout: bool,
    stderr: bool,
    /// On which host it starts.
    host: usize,
    /// Whether it is a `canal run`, which becomes its command.
    becomes: bool,
}

impl<'w> Cmd<'w> {
    pub(crate) fn new(world: &'w World, command: Command, host: usize, becomes: bool) -> Self {
        Self { world, command, stdout: true, stderr: true, host, becomes }
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.command.stdin(stdin);
        self
    }

    /// Where standard output goes; else it is kept for [`Ended::stdout`].
    pub(crate) fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.command.stdout(stdout);
        self.stdout = false;
        self
    }

    /// Where standard error goes; else it is kept for [`Ended::stderr`].
    pub(crate) fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.command.stderr(stderr);
        self.stderr = false;
        self
    }

    #[track_caller]
    pub(crate) fn spawn(mut self) -> Proc {
        let keep = |kept: bool| kept.then(|| self.world.output());
        let stdout = keep(self.stdout);
        let stderr = keep(self.stderr);
        if let Some((_, file)) = &stdout {
            self.command.stdout(file.try_clone().unwrap());
        }
        if let Some((_, file)) = &stderr {
            self.command.stderr(file.try_clone().unwrap());
        }
        let child = self.command.spawn().unwrap();
        let spread = Arc::clone(&self.world.spread);
        spread.lives(child.id(), self.host);
        Proc {
            child,
            stdout: stdout.map(|o| o.0),
            stderr: stderr.map(|o| o.0),
            status: None,
            spread,
            host: self.host,
            command: (over::ENGINE && self.becomes).then(OnceLock::new),
        }
    }

    /// Runs it to its end.
    #[track_caller]
    pub(crate) fn end(self) -> Ended {
        self.spawn().end()
    }
}

/// A process that was started; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Proc {
    /// For its pipes.
    pub(crate) child: Child,
    stdout: Option<PathBuf>,
    stderr: Option<PathBuf>,
    status: Option<ExitStatus>,
    spread: Arc<Spread>,
    host: usize,
    /// Of a `canal run` that stays: the process that is or becomes its command.
    command: Option<OnceLock<i32>>,
}

impl Proc {
    /// Its number: of a `canal run`, that of the process which is or becomes the command, and owns
    /// the lock. What stays as its parent over an engine is `child`.
    pub(crate) fn pid(&self) -> i32 {
        let started = self.child.id().cast_signed();
        let Some(command) = &self.command else { return started };
        *command.get_or_init(|| {
            wait_until("it has forked or ended", || {
                command_of(started).is_some() || !alive(started)
            });
            let command = command_of(started).unwrap_or(started);
            self.spread.lives(command.cast_unsigned(), self.host);
            command
        })
    }

    pub(crate) fn pid_text(&self) -> String {
        self.pid().to_string()
    }

    pub(crate) fn signal(&self, which: Signal) {
        signal(self.pid(), which);
    }

    /// Whether it has ended; reaps it.
    pub(crate) fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap();
        }
        self.status.is_some()
    }

    /// Kills it (-9) and waits until it is gone.
    #[track_caller]
    pub(crate) fn kill(self) -> Ended {
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGKILL);
        self.end()
    }

    /// Closes its standard input, at which `cat` ends, and waits for that.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Ended {
        drop(self.child.stdin.take());
        self.end()
    }

    /// Stops it (SIGSTOP), and waits until it is stopped.
    #[track_caller]
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        wait_until("it is stopped", || state(self.pid()) == Some('T'));
    }

    /// What it wrote to standard output so far.
    pub(crate) fn stdout(&self) -> String {
        text(self.stdout.as_deref())
    }

    /// What it wrote to standard error so far.
    pub(crate) fn stderr(&self) -> String {
        text(self.stderr.as_deref())
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        let begun = Instant::now();
        while !self.has_ended() {
            let late = begun.elapsed() > BOUND;
            assert!(!late, "pid {} does not end; stderr: {}", self.pid(), self.stderr());
            thread::sleep(Duration::from_millis(1));
        }
        let status = self.status.unwrap();
        self.spread.settle();
        Ended {
            code: status.code(),
            signal: status.signal(),
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if self.status.is_none() {
            if let Some(command) = command_of(self.child.id().cast_signed()) {
                let _ = kill(Pid::from_raw(command), Signal::SIGKILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// It ended with this exit code.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Standard output, as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

fn text(path: Option<&Path>) -> String {
    let bytes = path.map(|path| fs::read(path).unwrap_or_default()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How often a process went to sleep.
pub(crate) fn sleeps(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}
