//! A run: machines and time, in which everything that can go wrong does.

use std::collections::BTreeMap;
use std::time::Instant;

use fastrand::Rng;
use tempfile::TempDir;

use super::claims::{Claim, Claims, Until};
use super::faults::Fault;
use super::host::Host;
use super::machine::{Machine, Process};
use super::network::Network;
use super::plan::Plan;
use super::program::{Around, Program, question};

/// How long a step is, in milliseconds of true time.
pub(super) const STEP_MS: u64 = 10;
/// Until then requests are made and faults happen.
const FAULTS_UNTIL_MS: u64 = 4_000;
/// By then everything must be over.
const OVER_MS: u64 = 60_000;
/// How long a host lives without renewing.
const TTL_MS: u64 = 1_200;
/// The most programs that run at once on a machine.
const PROGRAMS_MAX: usize = 24;

/// What a run was like, to see that something happened in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) grants: u64,
    pub(super) daemons: u64,
    pub(super) refused: BTreeMap<String, u64>,
}

/// A run.
#[derive(Debug)]
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) now_ms: u64,
    pub(super) hosts: Vec<Host>,
    pub(super) claims: Claims,
    pub(super) often: Vec<(Fault, u32)>,
    refused: BTreeMap<String, u64>,
    /// In how many of a thousand steps a request is made.
    busy: u32,
    /// The engine, if the table is not kept in a journal.
    pub(super) network: Option<Network>,
    /// From TERM to KILL, in milliseconds.
    grace_ms: u64,
    _folder: TempDir,
}

/// Where the daemons' files are: in memory, if the machine has such a directory.
fn folder() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("canal-sim-");
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).unwrap()
}

impl World {
    pub(super) fn new(seed: u64, over_engine: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let folder = folder();
        let base = Instant::now();
        let number = if over_engine { [2, 2, 3][rng.usize(0..3)] } else { 1 };
        // Half of the runs have no time to lose.
        let (grace_ms, margin_ms) = if rng.bool() { (20, 30) } else { (TTL_MS / 6, TTL_MS / 12) };
        let hosts: Vec<Host> = (0..number)
            .map(|at| {
                let (clock_ms, rate) = (rng.u64(1_000..100_000), rng.u64(996..=1004));
                let machine = Machine::new(at, base, clock_ms, rate);
                let host = Host::new(machine, folder.path(), &format!("host{at}"));
                if over_engine {
                    host.configure(&format!(
                        "[engine]\nurl = \"simulated://engine\"\nhost = \"host{at}\"\n\
                         ttl = \"{TTL_MS}ms\"\ngrace = \"{grace_ms}ms\"\n\
                         margin = \"{margin_ms}ms\"\n"
                    ));
                }
                host
            })
            .collect();
        let network = over_engine.then(|| Network::new(&mut rng, number));
        let often = Fault::draw(&mut rng, over_engine);
        let busy = rng.u32(50..400);
        Self {
            rng,
            now_ms: 0,
            hosts,
            claims: Claims::default(),
            often,
            refused: BTreeMap::new(),
            busy,
            network,
            grace_ms,
            _folder: folder,
        }
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// What went wrong.
    pub(super) fn run(mut self) -> Result<Seen, String> {
        while self.now_ms < OVER_MS {
            self.now_ms += STEP_MS;
            let calm = self.now_ms >= FAULTS_UNTIL_MS;
            if calm {
                self.mend();
            } else {
                self.cause_faults();
            }
            let now_ms = self.now_ms;
            tracing::debug!(now_ms, "a step");
            self.step(!calm).map_err(|what| format!("at {now_ms} ms: {what}"))?;
            if calm && self.is_over() {
                return self.conclude();
            }
        }
        Err(format!("something is stuck: {}", self.left()))
    }

    fn step(&mut self, asks: bool) -> Result<(), String> {
        if let Some(network) = &mut self.network {
            network.step(&mut self.rng, self.now_ms);
        }
        for at in 0..self.hosts.len() {
            self.hosts[at].machine.set_time(self.now_ms);
            if self.now_ms < self.hosts[at].frozen_until {
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
            if self.network.is_none() {
                self.check_owners(at)?;
            }
        }
        let machines: Vec<&Machine> = self.hosts.iter().map(|host| &*host.machine).collect();
        self.claims.follow(self.now_ms, &machines);
        // Over an engine, a process that is stopped for too long loses its lock. It is ended before
        // it runs on.
        let runs = |claim: &Claim| {
            let Until::Processes(serials) = &claim.until else { return true };
            let host = &self.hosts[claim.host];
            let runs = |serial: &u64| host.machine.runs(*serial);
            self.network.is_none() || host.frozen_until <= self.now_ms && serials.iter().any(runs)
        };
        self.claims.check(runs)
    }

    /// Starts commands from time to time.
    fn begin(&mut self, at: usize) -> Result<(), String> {
        if self.rng.u32(0..1_000) >= self.busy || self.hosts[at].programs.len() > PROGRAMS_MAX {
            return Ok(());
        }
        let plan = Plan::any(&mut self.rng, self.network.is_some());
        let looks = (self.rng.u8(0..5) == 0).then(|| question(&mut self.rng));
        self.around(at, |around| {
            match looks {
                Some((method, parameters)) => Program::look(around, method, parameters),
                None => Program::start(around, 0, plan, Vec::new()),
            }
            Ok(())
        })
    }

    fn run_programs(&mut self, at: usize) -> Result<(), String> {
        let pids: Vec<u32> = self.hosts[at].programs.keys().copied().collect();
        for pid in pids {
            let host = &mut self.hosts[at];
            if host.stopped.contains_key(&pid) || !host.machine.is_alive(pid) {
                continue;
            }
            let Some(mut program) = host.programs.remove(&pid) else { continue };
            let stepped = self.around(at, |around| program.step(around));
            self.hosts[at].programs.insert(pid, program);
            stepped?;
        }
        Ok(())
    }

    /// Calls something with what is around the programs of a machine.
    fn around(
        &mut self,
        at: usize,
        work: impl FnOnce(&mut Around<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let host = &self.hosts[at];
        let mut around = Around {
            rng: &mut self.rng,
            now_ms: self.now_ms,
            host: at,
            machine: &host.machine,
            socket: &host.place.socket,
            over_engine: self.network.is_some(),
            grace_ms: self.grace_ms,
            daemon_since: host.daemon_since,
            claims: &mut self.claims,
            started: Vec::new(),
            refused: &mut self.refused,
        };
        let done = work(&mut around);
        let started = around.started;
        let host = &mut self.hosts[at];
        host.programs.extend(started.into_iter().map(|program| (program.pid, program)));
        done
    }

    /// Forgets the programs of processes that have ended, and reaps some of these.
    fn bury(&mut self, at: usize) {
        let Host { machine, programs, .. } = &mut self.hosts[at];
        programs.retain(|pid, _| machine.is_alive(*pid));
        if self.rng.bool() {
            machine.reap();
        }
    }

    /// Lets processes go on whose time of standing still is over.
    fn wake(&mut self, at: usize) {
        let now_ms = self.now_ms;
        let Host { machine, stopped, .. } = &mut self.hosts[at];
        let goes_on = |process: &mut Process| {
            if process.state == 'T' {
                process.state = 'R';
            }
        };
        for (pid, _) in stopped.extract_if(.., |_, until| now_ms >= *until) {
            machine.with(pid, goes_on);
        }
    }

    /// After a daemon has had its turn, what it holds belongs to live processes.
    fn check_owners(&self, at: usize) -> Result<(), String> {
        let host = &self.hosts[at];
        let Some(server) = &host.daemon else { return Ok(()) };
        if self.now_ms < host.stopped_until {
            return Ok(());
        }
        for hold in server.ledger.table.holds().filter(|hold| !hold.orphaned) {
            let crate::core::Owner::Process(process) = hold.asked.owner else { continue };
            let serial = process.inode - 1_000;
            let had_a_turn = host.daemon_since.is_some_and(|since| since + STEP_MS < self.now_ms);
            if had_a_turn && !host.machine.lived_lately(serial, self.now_ms) {
                let unverified = server.owners.unverified.contains(&hold.frame);
                let since = host.daemon_since;
                return Err(format!(
                    "{hold:?} has no owner any more ({unverified}, daemon since {since:?}, {})",
                    host.machine.story(serial)
                ));
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let over_engine = self.network.is_some();
        let idle = |host: &Host| host.is_idle(over_engine) && host.programs.is_empty();
        self.claims.is_empty() && self.hosts.iter().all(idle)
    }

    /// The next daemon finds what this one left.
    fn conclude(mut self) -> Result<Seen, String> {
        for at in 0..self.hosts.len() {
            if self.network.is_some() {
                break;
            }
            let snapshot = |host: &Host| host.daemon.as_ref().map(|it| it.ledger.table.snapshot());
            let before = snapshot(&self.hosts[at]);
            self.hosts[at].kill_daemon();
            self.hosts[at].run_daemon(self.now_ms)?;
            let after = snapshot(&self.hosts[at]);
            let holds = |it: &Option<crate::core::Snapshot>| {
                it.as_ref().map(|it| (it.holds.clone(), it.frames.clone()))
            };
            if holds(&before) != holds(&after) {
                return Err(format!("the next daemon finds another table: {before:?} {after:?}"));
            }
        }
        let daemons = self.hosts.iter().map(|host| host.daemons).sum();
        Ok(Seen { grants: self.claims.told() as u64, daemons, refused: self.refused })
    }

    fn left(&self) -> String {
        let left = self.hosts.iter().map(|host| {
            let table = host.daemon.as_ref().map(|it| it.ledger.table.snapshot());
            format!("{:?}\n  {table:?}\n  {:?}", host.programs, self.claims)
        });
        left.collect::<Vec<_>>().join("\n")
    }
}
