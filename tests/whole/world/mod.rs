//! A world of its own for each test: a folder, a socket, a daemon, and whatever the test starts.
//!
//! Its one invariant: when it is dropped, nothing that was started in it is left. It finds its own
//! by a mark in their environment, and daemons (whose environment is clean) by the folder's name
//! in their arguments, and ends them by their numbers.

mod commands;
mod daemons;
mod seen;

use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::over;
use crate::process::BOUND;
use crate::spread::Spread;

/// The program under test.
pub(crate) fn canal() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_canal"))
}

/// A folder with a socket, and whatever is started there.
#[derive(Debug)]
pub(crate) struct World {
    folder: tempfile::TempDir,
    files: Cell<u32>,
    /// Its hosts: one, or over an engine two.
    pub(crate) spread: Arc<Spread>,
    /// Switches for tests, in the environment of whatever is started.
    switches: Vec<(&'static str, String)>,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("canal-world-").tempdir().unwrap();
        let spread = Arc::new(Spread::below(folder.path()));
        let world = Self { folder, files: Cell::new(0), spread, switches: Vec::new() };
        fs::create_dir(world.path("work")).unwrap();
        world
    }

    /// A world in which canal does without what Linux 5.10 lacks.
    pub(crate) fn of_linux_5_10() -> Self {
        Self::new().switch("CANAL_KERNEL", "5.10")
    }

    /// Sets a switch for tests for whatever is started.
    pub(crate) fn switch(mut self, name: &'static str, value: impl ToString) -> Self {
        self.switches.push((name, value.to_string()));
        self
    }

    /// A world whose daemon runs already.
    pub(crate) fn with_daemon() -> Self {
        let world = Self::new();
        world.status();
        world
    }

    /// A path in the world's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of the socket, the journal and so on; of two hosts, of the first one.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.spread.place(0).to_owned()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.spread.socket(0)
    }

    /// Writes the configuration of its daemons.
    pub(crate) fn configure(&self, config: &str) {
        self.spread.configure(config);
    }

    /// For what is about one daemon: all clients are on one host, if there are two.
    pub(crate) fn on_one_host(self) -> Self {
        self.spread.pin();
        self
    }

    /// A file in `work`, as text; empty if it is not there.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path("work").join(name)).unwrap_or_default()
    }

    /// A new file for what a command prints.
    pub(crate) fn output(&self) -> (PathBuf, File) {
        self.files.set(self.files.get() + 1);
        let path = self.path(&format!("output.{}", self.files.get()));
        (path.clone(), File::create(path).unwrap())
    }

    /// The processes of this world.
    fn processes(&self) -> Vec<i32> {
        let mine = self.folder.path().as_os_str().as_encoded_bytes();
        let mark = [b"TEST_WORLD=", mine].concat();
        let numbers = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let me = std::process::id().cast_signed();
        let of_this_world = |pid: &i32| {
            let read = |file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let has = |bytes: &[u8], part: &[u8]| memchr::memmem::find(bytes, part).is_some();
            *pid != me && (has(&read("environ"), &mark) || has(&read("cmdline"), mine))
        };
        numbers.filter(of_this_world).collect()
    }
}

/// Whether a test says something of the journal, or of the place of one daemon, that is not so, or
/// means nothing, over an engine. Those that do are listed in `tests/data/over_engines.txt`.
pub(crate) fn journal_only(_why: &str) -> bool {
    over::ENGINE
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            for host in 0..self.spread.count() {
                let log = self.spread.place(host).join("daemon.log");
                let log = fs::read_to_string(log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(20).collect();
                for line in tail.iter().rev() {
                    eprintln!("daemon.log: {line}");
                }
            }
        }
        // A client that is killed may just have started a daemon: until nothing is found.
        let begun = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() || begun.elapsed() > BOUND {
                break;
            }
            for pid in left {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}
