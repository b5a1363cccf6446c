//! A run: machines and time, in which everything that can go wrong does.

use std::collections::BTreeMap;
use std::time::Instant;

use fastrand::Rng;
use tempfile::TempDir;

use super::claims::Claims;
use super::faults::Fault;
use super::host::Host;
use super::machine::Machine;
use super::plan::Plan;
use super::program::{Around, Program, question};

/// How long a step is, in milliseconds of true time.
pub(super) const STEP_MS: u64 = 10;
/// Until then requests are made and faults happen.
const FAULTS_UNTIL_MS: u64 = 4_000;
/// By then everything must be over.
const OVER_MS: u64 = 60_000;
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
    _folder: TempDir,
}

/// Where the daemons' files are: in memory, if the machine has such a directory.
fn folder() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("canal-sim-");
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).unwrap()
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let folder = folder();
        let base = Instant::now();
        let machine = Machine::new(0, base, rng.u64(1_000..100_000), rng.u64(996..=1004));
        let hosts = vec![Host::new(machine, folder.path(), "host0")];
        let often = Fault::draw(&mut rng);
        let busy = rng.u32(50..400);
        Self {
            rng,
            now_ms: 0,
            hosts,
            claims: Claims::default(),
            often,
            refused: BTreeMap::new(),
            busy,
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
            self.step(!calm).map_err(|what| format!("at {now_ms} ms: {what}"))?;
            if calm && self.is_over() {
                return self.conclude();
            }
        }
        Err(format!("something is stuck: {}", self.left()))
    }

    fn step(&mut self, asks: bool) -> Result<(), String> {
        for at in 0..self.hosts.len() {
            self.hosts[at].machine.set_time(self.now_ms);
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
            self.check_owners(at)?;
        }
        let machines: Vec<&Machine> = self.hosts.iter().map(|host| &*host.machine).collect();
        self.claims.follow(self.now_ms, &machines);
        self.claims.check()
    }

    /// Starts commands from time to time.
    fn begin(&mut self, at: usize) -> Result<(), String> {
        if self.rng.u32(0..1_000) >= self.busy || self.hosts[at].programs.len() > PROGRAMS_MAX {
            return Ok(());
        }
        let plan = Plan::any(&mut self.rng);
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
        let now_ms = self.now_ms;
        let Host { machine, programs, stopped, .. } = &mut self.hosts[at];
        programs.retain(|pid, _| machine.is_alive(*pid));
        stopped.retain(|pid, until| {
            let goes_on = now_ms >= *until;
            if goes_on {
                machine.with(*pid, |process| {
                    if process.state == 'T' {
                        process.state = 'R';
                    }
                });
            }
            !goes_on
        });
        if self.rng.bool() {
            machine.reap();
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
                return Err(format!("{hold:?} has no owner any more"));
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let idle = |host: &Host| host.is_idle() && host.programs.is_empty();
        self.claims.is_empty() && self.hosts.iter().all(idle)
    }

    /// The next daemon finds what this one left.
    fn conclude(mut self) -> Result<Seen, String> {
        for at in 0..self.hosts.len() {
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
