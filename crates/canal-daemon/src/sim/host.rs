//! A machine with its daemon: the daemon's own code on a simulated kernel.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::machine::{Killed, Machine, Serial};
use super::programs::program::Program;
use super::watch::Watch;
use crate::config::file::Config;
use crate::net::all_connections::Source;
use crate::options::Options;
use crate::runtime_dir::claim::Claim;
use crate::server::Server;
use crate::start::open;
use canal_log::engine::Position;
use canal_log::sim::disk_faults::{self as fault, Disk};
use canal_protocol::paths::Place;
use canal_sys::kernel::simulated::on;

/// The maximum number of turns in one step. A daemon that always has more work is a fault.
const TURNS_MAX: usize = 500;

/// How soon the next daemon starts after one that could not continue.
const AGAIN_MS: u64 = 50;

/// The maximum number of descriptors of a daemon.
const DESCRIPTORS: u64 = 1024;

/// A machine with its daemon and programs.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) machine: Rc<Machine>,
    pub(super) place: Place,
    pub(super) daemon: Option<Box<Server>>,
    /// The time since which the daemon runs without a stop.
    pub(super) daemon_since: Option<u64>,
    /// No daemon starts before this time.
    pub(super) back_at: u64,
    /// Everything on the machine is stopped until this time.
    pub(super) frozen_until: u64,
    /// The daemon is stopped until this time.
    pub(super) stopped_until: u64,
    pub(super) programs: BTreeMap<Serial, Program>,
    /// The stopped processes, and the time until which each is stopped.
    pub(super) stopped: BTreeMap<Serial, u64>,
    /// If set, the disk stops after this number of bytes and steps, as in a kill.
    pub(super) disk_budget: Option<u64>,
    /// The fault of the disk.
    pub(super) disk: Disk,
    /// The disk has this fault until this time.
    pub(super) bad_disk_until: u64,
    /// No fault happens until this time.
    pub(super) spared_until: u64,
    /// The watcher of the daemons, over an engine.
    watch: Watch,
    /// How many daemons have started.
    pub(super) daemons: u64,
    /// How many of the daemon's reads for clients were checked, and how far the log reached when
    /// the pending one began.
    pub(super) reads: (u64, Option<Position>),
}

/// How a series of turns ended.
enum Turns {
    /// It is idle.
    Idle,
    /// It ended at the request of a client or a signal.
    Stopped,
}

impl Host {
    pub(super) fn new(machine: Machine, folder: &Path, name: &str) -> Self {
        let dir = folder.join(name);
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        let uid = canal_sys::process::user::geteuid().as_raw();
        let place = Place::find(Some(&dir.join("canal.sock")), uid).unwrap();
        Self {
            machine: Rc::new(machine),
            place,
            daemon: None,
            daemon_since: None,
            back_at: 0,
            frozen_until: 0,
            stopped_until: 0,
            programs: BTreeMap::new(),
            stopped: BTreeMap::new(),
            disk_budget: None,
            disk: Disk::default(),
            bad_disk_until: 0,
            spared_until: 0,
            watch: Watch::default(),
            daemons: 0,
            reads: (0, None),
        }
    }

    /// Runs the daemon until it is idle. Starts one if none is running.
    ///
    /// # Errors
    /// The daemon broke a rule.
    pub(super) fn run_daemon(&mut self, now_ms: u64) -> Result<(), String> {
        if now_ms < self.stopped_until {
            self.daemon_since = None;
            return Ok(());
        }
        if self.daemon.is_none() && now_ms < self.back_at {
            return Ok(());
        }
        let machine = self.machine.clone();
        let mut daemon = self.daemon.take();
        let starts = daemon.is_none();
        let work = || -> anyhow::Result<_> {
            let mut server = match daemon.take() {
                Some(server) => server,
                None => Box::new(start(&self.place)?),
            };
            let turns = turns(&mut server)?;
            Ok((server, turns))
        };
        let caught = || on(machine.clone(), || catch_unwind(AssertUnwindSafe(work)));
        let is_bad_disk = now_ms < self.bad_disk_until;
        if !is_bad_disk {
            self.disk = Disk { written: self.disk.written, ..Disk::default() };
        }
        let (done, was_stopped) = fault::on(&mut self.disk, || match self.disk_budget {
            Some(budget) => fault::after(budget, caught),
            None => (caught(), false),
        });
        if was_stopped {
            self.disk_budget = None;
            drop(done);
            self.is_gone();
            return Ok(());
        }
        match done {
            Ok(Ok((server, Turns::Idle))) => {
                self.daemons += u64::from(starts);
                self.daemon = Some(server);
                self.daemon_since = Some(self.daemon_since.unwrap_or(now_ms));
                Ok(())
            }
            Ok(Ok((_, Turns::Stopped))) => {
                self.is_gone();
                Ok(())
            }
            // It ends without an answer, and the next daemon continues from the journal.
            Ok(Err(_)) if is_bad_disk => {
                self.back_at = self.back_at.max(now_ms + AGAIN_MS);
                self.is_gone();
                Ok(())
            }
            Ok(Err(error)) => Err(format!("the daemon cannot go on: {error:#}")),
            Err(panic) if panic.is::<Killed>() => {
                self.is_gone();
                Ok(())
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Kills the daemon between two turns.
    pub(super) fn kill_daemon(&mut self) {
        let machine = self.machine.clone();
        on(machine, || self.daemon = None);
        self.is_gone();
    }

    fn is_gone(&mut self) {
        self.daemon_since = None;
        self.reads = (0, None);
        self.machine.kill_daemon_after(None);
    }

    /// Removes the daemon's files that are in memory, with or without the folder of FIFOs, as a
    /// user might.
    pub(super) fn lose_files(&mut self, with_folders: bool) {
        // A daemon that is killed now could not recreate them.
        self.machine.kill_daemon_after(None);
        self.disk_budget = None;
        self.bad_disk_until = 0;
        self.remove_files(with_folders);
    }

    /// Runs the watcher, which acts if no daemon does, and learns of each new membership.
    pub(super) fn watch(&mut self) {
        let Self { machine, watch, daemon, place, .. } = self;
        let step = || watch.step(daemon.as_deref(), &place.dir);
        machine.spare_daemon(|| on(machine.clone(), step));
    }

    /// The reason why the daemon cannot take part over an engine.
    pub(super) fn obstacle(&self) -> Option<String> {
        let server = self.daemon.as_ref()?;
        let ask = || on(self.machine.clone(), || server.status_of(0, (), 0));
        let status = self.machine.spare_daemon(ask);
        status.engine?.why
    }

    /// Cuts the power: files in memory are gone, and so are all processes.
    pub(super) fn reboot(&mut self, clock_ms: u64) {
        self.kill_daemon();
        self.programs.clear();
        self.stopped.clear();
        self.machine.reboot(clock_ms);
        self.watch = Watch::default();
        self.remove_files(true);
    }

    /// Removes the files that are in memory, with or without the folder of FIFOs.
    fn remove_files(&self, with_folders: bool) {
        for entry in fs::read_dir(&self.place.dir).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().unwrap().is_dir() {
                if with_folders {
                    fs::remove_dir_all(entry.path()).unwrap();
                }
            } else if !SURVIVES.iter().any(|kept| name.starts_with(kept)) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }

    /// Writes the configuration that the daemons of this machine read.
    pub(super) fn configure(&self, text: &str) {
        fs::write(self.place.dir.join("canal.toml"), text).unwrap();
    }

    /// Whether the daemon takes part, and has no holds and no waiters.
    pub(super) fn is_idle(&self, over_engine: bool) -> bool {
        let Some(server) = &self.daemon else { return false };
        let table = server.decide.table();
        let is_member = server.decide.is_member() && server.decide.is_shared();
        is_member == over_engine && table.holds().len() == 0 && table.waiters().len() == 0
    }
}

/// The files of the state directory, which is on a disk. All others are in memory.
const SURVIVES: [&str; 5] = ["state.json", "leases", "tokens", "engine", "canal.toml"];

fn start(place: &Place) -> anyhow::Result<Server> {
    let options = Options {
        on_demand: true,
        idle_exit_s: Some(0),
        embedded: true,
        ..Options::at(place.clone())
    };
    let config = Config::read(&place.stores().config)?;
    let claim = Claim::new(place, false)?;
    open(&options, &config, claim, None, DESCRIPTORS)
}

/// Runs the daemon's turns as its event loop does, until it would sleep.
fn turns(server: &mut Server) -> anyhow::Result<Turns> {
    for _ in 0..TURNS_MAX {
        let answered = server.decide.hears_engine(&mut Context::from_waker(Waker::noop()));
        let has_work = answered || server.has_work();
        let is_woken = server.conns.wait(Some(Duration::ZERO));
        let is_rung = server.timer.set_for.is_some_and(|at| at <= canal_sys::clock::boottime_ms());
        if is_rung {
            server.conns.reported.insert(Source::BOOTTIME_TIMER);
        }
        let is_due = server.time_to_sleep().is_some_and(|time| time.is_zero());
        if !(has_work || is_woken || is_rung || is_due) {
            return Ok(Turns::Idle);
        }
        server.turn()?;
        assert_eq!(server.forgotten_call(), None);
        if server.stopping {
            return Ok(Turns::Stopped);
        }
    }
    anyhow::bail!("it always has something to do")
}
