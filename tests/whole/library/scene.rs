//! Processes that use the library: this test binary again, playing one scene.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use canal::testing::Daemon;
use canal::{Endpoint, Guard, Lock};

/// The prefix of a scene's lines among those of the test harness.
const SAYS: &str = "scene: ";

/// The variables that control a scene.
const SOCKET: &str = "LIBRARY_SCENE_SOCKET";
const KEY: &str = "LIBRARY_SCENE_KEY";
const DIR: &str = "LIBRARY_SCENE_DIR";

/// How often each process takes its turn.
pub(crate) const TURNS: usize = 20;

/// A process that plays a scene. Dropping this kills it.
pub(crate) struct Scene {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Scene {
    /// A process that takes one slot of the key, and holds it until [`Self::end`].
    pub(crate) fn holds(daemon: &Daemon, key: &str) -> Self {
        Self::start("whole::library::scene::holds", daemon, key, Path::new("/"))
    }

    /// A process that takes one slot of `first` and then, after [`Self::go_on`], one of `second`.
    pub(crate) fn both(daemon: &Daemon, first: &str, second: &str) -> Self {
        Self::start(
            "whole::library::scene::takes_both",
            daemon,
            &format!("{first} {second}"),
            Path::new("/"),
        )
    }

    /// A process that takes the lock [`TURNS`] times. Each time it creates a directory and removes
    /// it, which fails if another process does so at the same time.
    pub(crate) fn takes_turns(daemon: &Daemon, key: &str, dir: &Path) -> Self {
        Self::start("whole::library::scene::takes_turns", daemon, key, dir)
    }

    /// A process that forks while it holds the lock, and prints the effect of the fork.
    pub(crate) fn forks(daemon: &Daemon, key: &str) -> Self {
        Self::start("whole::library::scene::forks", daemon, key, Path::new("/"))
    }

    fn start(name: &str, daemon: &Daemon, key: &str, dir: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(SOCKET, daemon.socket()).env(KEY, key).env(DIR, dir);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that the scene prints.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "the scene has ended");
            // The harness does not end its own line first.
            if let Some((_, said)) = line.split_once(SAYS) {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Lets the process take its next step.
    pub(crate) fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets the process continue to its end. Returns whether it succeeded.
    pub(crate) fn end(&mut self) -> bool {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().success()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn says(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{SAYS}{text}\n").as_bytes()).unwrap();
}

/// The lock of the scene; `None` if no test plays it.
fn lock() -> Option<Lock> {
    std::env::var(KEY).ok().map(lock_of)
}

fn lock_of(key: impl Into<String>) -> Lock {
    let endpoint = Endpoint::at(std::env::var_os(SOCKET).unwrap()).no_start();
    Lock::new(key).slots(1).endpoint(&endpoint).command("a scene")
}

/// Takes the lock, and prints a line if it has to wait.
fn take(lock: &Lock) -> Guard {
    let mut waits = false;
    let guard = lock.acquire_with(|_| {
        if !std::mem::replace(&mut waits, true) {
            says("waits");
        }
    });
    guard.unwrap()
}

#[test]
#[ignore = "a scene"]
fn holds() {
    let Some(lock) = lock() else { return };
    let guard = take(&lock);
    says(&format!("holds {}", guard.token()));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
#[ignore = "a scene"]
fn takes_both() {
    let Ok(keys) = std::env::var(KEY) else { return };
    let (first, second) = keys.split_once(' ').unwrap();
    let _first = take(&lock_of(first));
    says(&format!("holds {first}"));
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let _second = take(&lock_of(second));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
#[ignore = "a scene"]
fn takes_turns() {
    let Some(lock) = lock() else { return };
    let dir = Path::new(&std::env::var_os(DIR).unwrap()).join("alone");
    for _ in 0..TURNS {
        let guard = lock.acquire().unwrap();
        std::fs::create_dir(&dir).unwrap();
        std::thread::sleep(Duration::from_micros(300));
        std::fs::remove_dir(&dir).unwrap();
        drop(guard);
    }
}

#[test]
#[ignore = "a scene"]
#[expect(unsafe_code, reason = "a fork of a process with threads, as programs do it")]
fn forks() {
    let Some(lock) = lock() else { return };
    let guard = lock.acquire().unwrap();
    // SAFETY: the other thread of the harness only waits for this one, and the C library keeps its
    // allocator consistent across a fork.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            drop(guard);
            // Nothing of the harness may run twice.
            std::process::abort();
        }
        nix::unistd::ForkResult::Parent { child } => {
            nix::sys::wait::waitpid(child, None).unwrap();
            says(&format!("still holds {}", guard.token()));
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            guard.release().unwrap();
        }
    }
}
