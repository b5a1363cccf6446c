//! A daemon in a folder of its own.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use canal::protocol::{KeyInfo, Status};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::peer::{Idler, Peer, mutex_for};

#[path = "../bound/mod.rs"]
mod bound;
pub(crate) use bound::BOUND;

/// A daemon in a folder of its own; both are gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    folder: tempfile::TempDir,
    child: Option<Child>,
    /// Whether it is made to forget to answer a call.
    pub(crate) forgets: bool,
}

impl Daemon {
    /// A folder, and no daemon yet.
    pub(crate) fn folder() -> Self {
        let folder = tempfile::Builder::new().prefix("canal-wire-").tempdir().unwrap();
        fs::DirBuilder::new().mode(0o700).create(folder.path().join("run")).unwrap();
        Self { folder, child: None, forgets: false }
    }

    /// A daemon that answers.
    #[track_caller]
    pub(crate) fn start() -> Self {
        let mut daemon = Self::folder();
        daemon.run(|_| {});
        daemon
    }

    /// A daemon that answers, configured by this file.
    #[track_caller]
    pub(crate) fn configured(config: &str) -> Self {
        let mut daemon = Self::folder();
        fs::write(daemon.path("canal.toml"), config).unwrap();
        daemon.run(|_| {});
        daemon
    }

    /// `canal daemon`, not started yet.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_canal"));
        command.arg("daemon").arg("--socket").arg(self.socket());
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"CANAL_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stderr(Stdio::from(self.log()));
        command
    }

    fn log(&self) -> fs::File {
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.folder.path().join("log"))
            .unwrap()
    }

    /// All that its daemons said.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Whether it says that it forgot to answer somebody.
    fn forgot(&self) -> bool {
        self.said().contains("would never have been answered")
    }

    /// Starts a daemon in this folder and waits until it answers.
    #[track_caller]
    pub(crate) fn run(&mut self, prepare: impl FnOnce(&mut Command)) {
        let mut command = self.command();
        prepare(&mut command);
        self.adopt(command.spawn().unwrap());
    }

    /// Takes a daemon in this folder as its own and waits until it answers.
    #[track_caller]
    pub(crate) fn adopt(&mut self, child: Child) {
        self.child = Some(child);
        wait_until("the daemon answers", || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the daemon ended: {}", self.said());
            self.try_connect().is_some_and(|mut peer| peer.ask("Status", json!({})).is_some())
        });
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("run").join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("canal.sock")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub(crate) fn try_connect(&self) -> Option<Peer> {
        Peer::connect(&self.socket()).ok()
    }

    #[track_caller]
    pub(crate) fn connect(&self) -> Peer {
        self.try_connect().expect("a daemon listens")
    }

    #[track_caller]
    pub(crate) fn status(&self) -> Status {
        serde_json::from_value(self.connect().call("Status", json!({}))).unwrap()
    }

    /// Has another process hold a key until it is dropped.
    #[track_caller]
    pub(crate) fn hold(&self, tag: u128, key: &str) -> Idler {
        self.hold_with(tag, json!([{ "key": key, "slots": 1 }]))
    }

    /// Has another process hold these items until it is dropped.
    #[track_caller]
    pub(crate) fn hold_with(&self, tag: u128, items: Value) -> Idler {
        let idler = Idler::start();
        let mut asker = self.connect();
        let mut parameters = mutex_for(tag, "");
        parameters["items"] = items;
        asker.send_with("Acquire", parameters, &idler.pidfd());
        asker.returned("Acquire");
        asker.call("Confirm", json!({ "tag": format!("{tag:032x}") }));
        idler
    }

    /// What is known of a key, if anything.
    #[track_caller]
    pub(crate) fn key(&self, key: &str) -> Option<KeyInfo> {
        self.status().keys.into_iter().find(|shown| shown.key == key)
    }

    /// How many slots of a key are held, and how many wait.
    #[track_caller]
    pub(crate) fn use_of(&self, key: &str) -> (u64, u64) {
        self.key(key).map_or((0, 0), |key| (key.held, key.waiting))
    }

    #[track_caller]
    pub(crate) fn until_use(&self, key: &str, held: u64, waiting: u64) {
        wait_until(&format!("{held} hold {key} and {waiting} wait"), || {
            self.use_of(key) == (held, waiting)
        });
    }

    /// Kills the daemon as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).unwrap();
    }

    /// Waits for the end of the daemon; its exit code.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        let mut ended = None;
        wait_until("the daemon ends", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        ended.and_then(|ended| ended.code())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("the daemon said:\n{}", self.said());
        } else {
            assert_eq!(self.forgot(), self.forgets, "a call was never answered: {}", self.said());
        }
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < BOUND, "waited {BOUND:?} in vain until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The most memory that the daemon ever had, in bytes.
pub(crate) fn peak(daemon: &Daemon) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}
