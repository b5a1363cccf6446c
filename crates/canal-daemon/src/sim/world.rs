//! A run: machines and time, with every possible fault.

use std::collections::BTreeMap;
use std::time::Instant;

use fastrand::Rng;
use tempfile::TempDir;

use super::fault_profile::FaultProfile;
use super::host::Host;
use super::machine::{Machine, Process, Serial};
use super::network::Network;
use super::programs::plan::Plan;
use super::programs::program::{Around, Program, question};
use super::programs::received_grants::ReceivedGrants;
use canal_log::sim::engine::Counts;

/// The length of a step, in milliseconds of true time.
pub(super) const STEP_MS: u64 = 10;
/// The time by which everything must be over.
const OVER_MS: u64 = 60_000;
/// The interval at which the run checks the daemons for obstacles and for what they have read, in
/// milliseconds.
const ASKED_EVERY_MS: u64 = 500;

/// The events of a run, to check that it covered something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) grants: u64,
    pub(super) daemons: u64,
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) engine: Counts,
}

/// A run.
#[derive(Debug)]
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) now_ms: u64,
    pub(super) hosts: Vec<Host>,
    pub(super) received_grants: ReceivedGrants,
    pub(super) profile: FaultProfile,
    /// The machine that currently has bad luck.
    pub(super) victim: usize,
    refused: BTreeMap<String, u64>,
    /// The engine, unless a journal keeps the table.
    pub(super) network: Option<Network>,
    _folder: TempDir,
}

/// The name of the folder of the daemons' files begins with this.
pub(super) const FOLDER: &str = "canal-sim-";

/// The log line of each step of a machine.
pub(super) const STEP: &str = "a step of a machine";

/// The folder of the daemons' files: in memory, if the machine has such a directory.
fn folder() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix(FOLDER);
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).unwrap()
}

impl World {
    pub(super) fn new(seed: u64, over_engine: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let folder = folder();
        let base = Instant::now();
        let profile = FaultProfile::draw(&mut rng, over_engine);
        let hosts = (0..profile.hosts).map(|at| {
            let clock = (rng.u64(1_000..100_000), rng.u64(profile.rates.clone()));
            let machine = Machine::new(at, base, clock, profile.is_wrong_time);
            let mut host = Host::new(machine, folder.path(), &format!("host{at}"));
            if at > 0 {
                host.back_at = profile.started_by_ms * at as u64 / (profile.hosts as u64 - 1);
            }
            if over_engine {
                let FaultProfile { ttl_ms, grace_ms, margin_ms, .. } = profile;
                host.configure(&format!(
                    "[engine]\nurl = \"simulated://engine\"\nhost = \"host{at}\"\n\
                     ttl = \"{ttl_ms}ms\"\ngrace = \"{grace_ms}ms\"\n\
                     margin = \"{margin_ms}ms\"\n"
                ));
            }
            host
        });
        let hosts: Vec<Host> = hosts.collect();
        let network = over_engine.then(|| Network::new(&mut rng, &profile));
        tracing::debug!(?profile, "a run");
        Self {
            rng,
            now_ms: 0,
            hosts,
            received_grants: ReceivedGrants::default(),
            profile,
            victim: 0,
            refused: BTreeMap::new(),
            network,
            _folder: folder,
        }
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// The failure.
    pub(super) fn run(mut self) -> Result<Seen, String> {
        while self.now_ms < OVER_MS {
            self.now_ms += STEP_MS;
            let calm = self.is_calm();
            if calm {
                self.mend();
            } else {
                self.cause_faults();
            }
            let (now_ms, kind) = (self.now_ms, self.profile.kind);
            tracing::debug!(now_ms, "a step");
            self.step(!calm).map_err(|what| format!("at {now_ms} ms ({kind:?}): {what}"))?;
            if calm && self.is_over() {
                return self.conclude();
            }
        }
        Err(format!("something is stuck: {}", self.left()))
    }

    /// Whether all faults are over.
    fn is_calm(&self) -> bool {
        self.now_ms >= self.profile.faults_until_ms
    }

    pub(super) fn step(&mut self, asks: bool) -> Result<(), String> {
        if let Some(network) = &mut self.network {
            network.step(&mut self.rng, self.now_ms);
        }
        for at in 0..self.hosts.len() {
            self.hosts[at].machine.set_time(self.now_ms);
            if self.now_ms < self.hosts[at].frozen_until {
                self.hosts[at].daemon_since = None;
                continue;
            }
            self.wake(at);
            if let Some(network) = &self.network {
                network.offer(at);
            }
            if asks {
                self.begin(at)?;
            }
            let daemon_first = self.rng.bool();
            if daemon_first {
                self.hosts[at].run_daemon(self.now_ms)?;
            }
            self.run_programs(at)?;
            if !daemon_first {
                self.hosts[at].run_daemon(self.now_ms)?;
            }
            self.bury(at);
            self.note_state(at);
            match self.network {
                Some(_) => {
                    self.check_reads(at)?;
                    self.hosts[at].watch();
                }
                None => self.check_owners(at)?,
            }
        }
        let machines: Vec<&Machine> = self.hosts.iter().map(|host| &*host.machine).collect();
        self.received_grants.follow(self.now_ms, &machines);
        self.check_claims()?;
        if self.now_ms.is_multiple_of(ASKED_EVERY_MS) {
            self.check_obstacles()?;
            self.check_agreement()?;
        }
        Ok(())
    }

    /// Logs what two runs of the same seed must have in common.
    fn note_state(&self, at: usize) {
        let Host { machine, daemon, disk, daemons, .. } = &self.hosts[at];
        let cluster = daemon.as_ref().and_then(|server| server.decide.cluster());
        let read_to = cluster.and_then(|cluster| cluster.read_to());
        let (calls, written, rng) = (machine.calls(), disk.written, self.rng.get_seed());
        tracing::trace!(at, daemons, calls, written, rng, ?read_to, "{STEP}");
    }

    /// Starts commands from time to time.
    fn begin(&mut self, at: usize) -> Result<(), String> {
        let FaultProfile { busy, programs, .. } = self.profile;
        if self.rng.u32(0..1_000) >= busy || self.hosts[at].programs.len() > programs {
            return Ok(());
        }
        let plan = Plan::any(&mut self.rng, &self.profile.demand);
        let looks = (self.rng.u8(0..5) == 0).then(|| question(&mut self.rng));
        self.around(at, |around| {
            match looks {
                Some((method, parameters)) => Program::look(around, method, parameters),
                None => Program::start(around, None, plan, Vec::new()),
            }
            Ok(())
        })
    }

    fn run_programs(&mut self, at: usize) -> Result<(), String> {
        let all: Vec<Serial> = self.hosts[at].programs.keys().copied().collect();
        for serial in all {
            let host = &mut self.hosts[at];
            if host.stopped.contains_key(&serial) || !host.machine.lives(serial) {
                continue;
            }
            let Some(mut program) = host.programs.remove(&serial) else { continue };
            let stepped = self.around(at, |around| program.step(around));
            self.hosts[at].programs.insert(serial, program);
            stepped?;
        }
        Ok(())
    }

    /// Calls a function with the surroundings of a machine's programs.
    fn around(
        &mut self,
        at: usize,
        work: impl FnOnce(&mut Around<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let is_late = self.is_calm();
        let host = &self.hosts[at];
        let mut around = Around {
            rng: &mut self.rng,
            now_ms: self.now_ms,
            host: at,
            machine: &host.machine,
            socket: &host.place.socket,
            over_engine: self.network.is_some(),
            grace_ms: self.profile.grace_ms,
            is_late,
            daemon_since: host.daemon_since,
            received_grants: &mut self.received_grants,
            started: Vec::new(),
            refused: &mut self.refused,
        };
        let done = work(&mut around);
        let started = around.started;
        let host = &mut self.hosts[at];
        host.programs.extend(started.into_iter().map(|program| (program.serial, program)));
        done
    }

    /// Forgets the programs of ended processes, and reaps some of these.
    fn bury(&mut self, at: usize) {
        let Host { machine, programs, .. } = &mut self.hosts[at];
        programs.retain(|serial, _| machine.lives(*serial));
        if self.rng.bool() {
            machine.reap();
        }
    }

    /// Continues the processes whose stop is over.
    fn wake(&mut self, at: usize) {
        let now_ms = self.now_ms;
        let Host { machine, stopped, .. } = &mut self.hosts[at];
        let goes_on = |process: &mut Process| {
            if process.state == 'T' {
                process.state = 'R';
            }
        };
        for (serial, _) in stopped.extract_if(.., |_, until| now_ms >= *until) {
            machine.with(serial, goes_on);
        }
    }

    fn is_over(&self) -> bool {
        let over_engine = self.network.is_some();
        let idle = |host: &Host| host.is_idle(over_engine) && host.programs.is_empty();
        self.received_grants.is_empty() && self.hosts.iter().all(idle)
    }

    fn conclude(mut self) -> Result<Seen, String> {
        match self.network {
            Some(_) => self.compare_tables()?,
            None => self.compare_with_the_next()?,
        }
        let daemons = self.hosts.iter().map(|host| host.daemons).sum();
        let grants = self.received_grants.told() as u64;
        let engine = self.network.as_ref().map(Network::counts).unwrap_or_default();
        Ok(Seen { grants, daemons, refused: self.refused, engine })
    }

    fn left(&self) -> String {
        let left = self.hosts.iter().map(|host| {
            let table = host.daemon.as_ref().map(|it| it.decide.table().snapshot());
            format!("{:?}\n  {table:?}\n  {:?}", host.programs, self.received_grants)
        });
        left.collect::<Vec<_>>().join("\n")
    }
}
