//! A world of its own for each test: a folder, a socket, a daemon, and whatever the test starts.
//!
//! Its one invariant: when it is dropped, nothing that was started in it is left. It finds its own
//! by a mark in their environment, and daemons (whose environment is clean) by the folder's name
//! in their arguments, and ends them by their numbers.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use canal::protocol::{KeyShown, Status};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::over;
use crate::process::{BOUND, Cmd, Proc, alive, signal, wait_until};
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
    /// The kernel that canal shall take this one for.
    kernel: Option<&'static str>,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("canal-world-").tempdir().unwrap();
        let spread = Arc::new(Spread::below(folder.path()));
        let world = Self { folder, files: Cell::new(0), spread, kernel: None };
        fs::create_dir(world.path("work")).unwrap();
        world
    }

    /// A world in which canal does without what Linux 5.10 lacks.
    pub(crate) fn of_linux_5_10() -> Self {
        let mut world = Self::new();
        world.kernel = Some("5.10");
        world
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

    /// Over an engine, where each host has a daemon that nobody asks once it is dead: somebody comes to
    /// each of them, as a service manager does.
    #[track_caller]
    pub(crate) fn daemons_return(&self) {
        if over::ENGINE {
            self.status();
        }
    }

    /// For what is about one daemon: all clients are on one host, if there are two.
    pub(crate) fn on_one_host(self) -> Self {
        self.spread.pin();
        self
    }

    /// `canal ARGS` at this world's socket.
    pub(crate) fn canal<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd<'_> {
        self.program(canal(), args)
    }

    /// A shell script (`sh -c`), for which `canal` is in PATH.
    pub(crate) fn sh(&self, script: &str) -> Cmd<'_> {
        self.program("sh", ["-c", script])
    }

    /// Any program, in the folder `work`, with the environment of this world.
    pub(crate) fn program<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = A>,
    ) -> Cmd<'_> {
        let args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        self.program_on(self.spread.host_for(&args), program, args)
    }

    fn program_on(&self, host: usize, program: impl AsRef<OsStr>, args: Vec<OsString>) -> Cmd<'_> {
        let becomes = program.as_ref() == canal() && args.first().is_some_and(|arg| arg == "run");
        let mut command = Command::new(program.as_ref());
        if signals_are_ignored() {
            command = Command::new("env");
            command.arg("--default-signal=HUP,INT,QUIT,TERM").arg(program.as_ref());
        }
        command.args(args);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"CANAL_") {
                command.env_remove(name);
            }
        }
        let mut path = vec![canal().parent().unwrap().to_owned()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        command
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("CANAL_SOCKET", self.spread.socket(host))
            .env("TEST_WORLD", self.folder.path())
            .current_dir(self.path("work"))
            .stdin(Stdio::null());
        if let Some(kernel) = self.kernel {
            command.env("CANAL_KERNEL", kernel);
        }
        Cmd::new(self, command, host, becomes)
    }

    /// What `canal status --json` says; starts daemons if none run.
    #[track_caller]
    pub(crate) fn status(&self) -> Status {
        if !over::ENGINE {
            return serde_json::from_value(self.status_of(0)).unwrap();
        }
        let member = |host| self.status_of(host)["engine"]["state"] == "member";
        for host in 0..self.spread.count() {
            wait_until("the host is a member", || member(host));
        }
        wait_until("the hosts know each other", || {
            let count = self.spread.count();
            self.spread.ask_all().iter().flatten().filter(|it| it.hosts.len() == count).count()
                == count
        });
        self.look().unwrap()
    }

    /// The same as it is printed; of two hosts, by the first.
    #[track_caller]
    pub(crate) fn status_json(&self) -> Value {
        if over::ENGINE {
            self.status();
        }
        self.status_of(0)
    }

    #[track_caller]
    fn status_of(&self, host: usize) -> Value {
        let args = ["status", "--json"].map(OsString::from);
        let ended = self.program_on(host, canal(), args.into()).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    }

    /// The same, asked over the socket, if a daemon answers there. Starts none.
    #[track_caller]
    pub(crate) fn look(&self) -> Option<Status> {
        self.spread.look()
    }

    /// What is known of a key.
    pub(crate) fn key(&self, key: &str) -> KeyShown {
        self.look().map_or_else(|| unused(key), |status| key_of(status, key))
    }

    /// Slots held of a key.
    pub(crate) fn held(&self, key: &str) -> u64 {
        self.key(key).held
    }

    #[track_caller]
    pub(crate) fn until_held(&self, key: &str, held: u64) {
        wait_until(&format!("{held} slots of {key} are held"), || {
            self.look().is_some_and(|status| key_of(status, key).held == held)
        });
    }

    #[track_caller]
    pub(crate) fn until_waiting(&self, key: &str, waiting: u64) {
        wait_until(&format!("{waiting} wait for {key}"), || {
            self.look().is_some_and(|status| key_of(status, key).waiting == waiting)
        });
    }

    /// Nothing is held and nobody waits, by the daemon's own words.
    #[track_caller]
    pub(crate) fn until_idle(&self) {
        wait_until("nothing is held and nobody waits", || {
            // If none runs, there may be nobody left who would start one.
            let seen = self.look().or_else(|| Some(self.status()));
            seen.is_some_and(|s| s.keys.iter().all(|k| k.held == 0 && k.waiting == 0))
        });
    }

    /// The process of the daemon that answers; of two hosts, of the first one's.
    #[track_caller]
    pub(crate) fn daemon_pid(&self) -> i32 {
        i32::try_from(self.status().daemon.pid).unwrap()
    }

    /// The processes of the daemons that answer, of each host one.
    pub(crate) fn daemon_pids(&self) -> Vec<i32> {
        self.spread.ask_all().iter().flatten().map(|it| it.daemon.pid.cast_signed()).collect()
    }

    /// Kills the daemon that answers, of each host, and waits until it is gone.
    #[track_caller]
    pub(crate) fn kill_daemon(&self) -> i32 {
        self.status();
        self.kill_daemon_quietly()
    }

    /// The same, but starts none, neither before nor after.
    #[track_caller]
    pub(crate) fn kill_daemon_quietly(&self) -> i32 {
        let pids = self.daemon_pids();
        let first = *pids.first().expect("a daemon runs");
        pids.iter().for_each(|pid| signal(*pid, Signal::SIGKILL));
        wait_until("the daemon is dead", || !pids.iter().any(|pid| alive(*pid)));
        first
    }

    /// Starts a daemon in the foreground and waits until it answers.
    #[track_caller]
    pub(crate) fn daemon<'a>(&'a self, prepare: impl FnOnce(Cmd<'a>) -> Cmd<'a>) -> Proc {
        let daemon = prepare(self.program_on(0, canal(), vec!["daemon".into()])).spawn();
        let pid = daemon.pid();
        wait_until("the daemon answers", || {
            let up = self.look().is_some_and(|s| i32::try_from(s.daemon.pid) == Ok(pid));
            up || !alive(pid)
        });
        daemon
    }

    /// Holds a key with a process that does nothing until it is killed or [`Proc::finish`]ed.
    #[track_caller]
    pub(crate) fn holder(&self, lock: &[&str]) -> Proc {
        let mut args = vec!["run"];
        args.extend(lock);
        args.extend(["--", "cat"]);
        let held = |w: &Self| w.look().map_or(0, |s| s.keys.iter().map(|k| k.held).sum::<u64>());
        let before = held(self);
        let holder = self.canal(args).stdin(Stdio::piped()).spawn();
        wait_until("the holder holds", || held(self) > before);
        holder
    }

    /// Starts `canal run LOCK -- COMMAND` and waits until it queues for `key`.
    #[track_caller]
    pub(crate) fn waiter(&self, key: &str, lock: &[&str], command: &[&str]) -> Proc {
        let before = self.key(key).waiting;
        let mut args = vec!["run", "-k", key];
        args.extend(lock);
        args.push("--");
        args.extend(command);
        let waiter = self.canal(args).spawn();
        self.until_waiting(key, before + 1);
        waiter
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
            let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|w| w == part);
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

/// Whether the tests were started with signals ignored that they need, as nohup(1) and a shell's
/// `&` do.
fn signals_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    let needed = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
    needed.iter().any(|which| ignored & (1 << (*which as u32 - 1)) != 0)
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

/// What a status says of a key.
fn key_of(status: Status, key: &str) -> KeyShown {
    status.keys.into_iter().find(|shown| shown.key == key).unwrap_or_else(|| unused(key))
}

/// A key that nobody uses.
fn unused(key: &str) -> KeyShown {
    KeyShown {
        key: key.to_owned(),
        kind: None,
        held: 0,
        capacity: None,
        view: None,
        stored: false,
        waiting: 0,
        holders: Vec::new(),
        waiters: Vec::new(),
    }
}
