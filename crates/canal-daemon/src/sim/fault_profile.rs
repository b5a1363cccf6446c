//! The fault profile of a run. The seed draws it: how often each fault happens and how long it
//! lasts, how long hosts live without renewing, and what commands ask for.
//!
//! A fault profile is no scenario: it only makes some things frequent that must coincide before a
//! rule matters.
//!
//! With equal probabilities in every run, most broken rules took more seeds than a test run has.
//! Short TTLs and few faults find more, because a host that is always disturbed holds nothing.

use std::ops::RangeInclusive;

use fastrand::Rng;

use super::programs::plan::{Demand, KEYS};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A daemon is killed, between two turns or within one.
    KillDaemon,
    /// A daemon is killed while it writes to the disk.
    TearWrite,
    /// A daemon is stopped for a while.
    StopDaemon,
    /// A process is killed.
    Kill,
    /// A process is stopped for a while, or only the `canal run` that supervises it.
    Stop,
    /// The power fails.
    Reboot,
    /// A whole machine stops for a while.
    Freeze,
    /// A disk is full for a while.
    FillDisk,
    /// A disk fails during a write or later, for a while.
    BreakDisk,
    /// A user removes the files of a running daemon.
    LoseFiles,
    /// A machine is cut off from the engine.
    Cut,
    /// A machine reaches the engine again.
    Heal,
    /// Messages between a machine and the engine take longer.
    Slow,
    /// The network delays the calls of a machine for a while.
    StallCalls,
    /// The network delays the engine's answers to a machine for a while.
    StallAnswers,
    /// The engine reports to a host that its membership has ended.
    Fence,
    /// The engine stops, and starts again.
    RestartEngine,
    /// The engine restarts without the end of its log.
    LoseLog,
}

/// The key with a single slot, which excludes most.
const MUTEX: usize = 3;

/// The fault profile of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Everything, with the embedded journal.
    Journal,
    /// A disk that is full or fails, and files that vanish, with the embedded journal.
    BadDisk,
    /// Everything, over an engine.
    Engine,
    /// Stops and cuts that last for about the TTL of a host.
    NearTtl,
    /// Calls or answers that take long, in one direction.
    SlowEngine,
    /// Restarts of daemons and machines, and memberships that end.
    Restarts,
    /// An engine that loses the end of its log.
    LostLog,
    /// The same, with a wrong time of day everywhere.
    WrongTime,
}

/// The parameters of a run.
#[derive(Debug)]
pub(super) struct FaultProfile {
    pub(super) kind: Kind,
    pub(super) hosts: usize,
    /// How long a host lives without renewing.
    pub(super) ttl_ms: u64,
    /// The time from TERM to KILL.
    pub(super) grace_ms: u64,
    /// The time from KILL to the end of the TTL.
    pub(super) margin_ms: u64,
    /// Hosts make a snapshot after this many batches.
    pub(super) snapshot_batches: u64,
    /// How much longer answers of the engine take than calls, on some machines.
    pub(super) slow_answers_ms: u64,
    /// How often each fault happens, in a thousand steps.
    pub(super) often: Vec<(Fault, u32)>,
    /// How long faults last, if that is similar for all.
    lasts_ms: Option<RangeInclusive<u64>>,
    /// Whether one machine has most of the bad luck for a while, so that others can take its locks.
    pub(super) has_victim: bool,
    /// The speed of clocks, in thousandths of the true speed.
    pub(super) rates: RangeInclusive<u64>,
    /// Whether the time of day is wrong everywhere.
    pub(super) is_wrong_time: bool,
    /// The time by which the last of the first daemons starts.
    pub(super) started_by_ms: u64,
    /// The distribution of the requests.
    pub(super) demand: Demand,
    /// The number of steps in a thousand that make a request.
    pub(super) busy: u32,
    /// The maximum number of programs that run on a machine at once.
    pub(super) programs: usize,
    /// Requests and faults happen until this time.
    pub(super) faults_until_ms: u64,
}

const ANYTHING: [(Fault, u32); 6] = [
    (Fault::KillDaemon, 12),
    (Fault::TearWrite, 6),
    (Fault::StopDaemon, 4),
    (Fault::Kill, 20),
    (Fault::Stop, 12),
    (Fault::Reboot, 1),
];

impl Kind {
    fn draw(rng: &mut Rng, over_engine: bool) -> Self {
        if !over_engine {
            return [Self::Journal, Self::Journal, Self::Journal, Self::BadDisk][rng.usize(0..4)];
        }
        let kinds = [
            Self::Engine,
            Self::NearTtl,
            Self::NearTtl,
            Self::SlowEngine,
            Self::SlowEngine,
            Self::Restarts,
            Self::LostLog,
            Self::LostLog,
            Self::LostLog,
            Self::WrongTime,
        ];
        kinds[rng.usize(0..kinds.len())]
    }

    /// How often each fault happens, in a thousand steps.
    fn weights(self) -> Vec<(Fault, u32)> {
        let of_engine = [
            (Fault::Freeze, 4),
            (Fault::Cut, 8),
            (Fault::Slow, 4),
            (Fault::StallCalls, 3),
            (Fault::StallAnswers, 3),
            (Fault::RestartEngine, 1),
            (Fault::Fence, 1),
        ];
        match self {
            Self::Journal => [&ANYTHING[..], &[(Fault::Freeze, 3)]].concat(),
            Self::BadDisk => vec![
                (Fault::FillDisk, 8),
                (Fault::BreakDisk, 12),
                (Fault::LoseFiles, 4),
                (Fault::KillDaemon, 6),
                (Fault::TearWrite, 6),
                (Fault::Freeze, 3),
                (Fault::Kill, 10),
                (Fault::Stop, 6),
                (Fault::Reboot, 1),
            ],
            Self::Engine => [&ANYTHING[..], &of_engine].concat(),
            Self::NearTtl => vec![
                (Fault::StopDaemon, 7),
                (Fault::StallCalls, 9),
                (Fault::Freeze, 3),
                (Fault::Stop, 4),
                (Fault::Cut, 4),
                (Fault::StallAnswers, 3),
                (Fault::KillDaemon, 2),
            ],
            Self::SlowEngine => vec![
                (Fault::StallCalls, 8),
                (Fault::StopDaemon, 3),
                (Fault::StallAnswers, 2),
                (Fault::Cut, 3),
                (Fault::RestartEngine, 1),
            ],
            Self::Restarts => vec![
                (Fault::KillDaemon, 12),
                (Fault::TearWrite, 4),
                (Fault::Kill, 10),
                (Fault::Fence, 6),
                (Fault::Reboot, 2),
                (Fault::Cut, 2),
            ],
            Self::LostLog => vec![
                (Fault::LoseLog, 10),
                (Fault::KillDaemon, 16),
                (Fault::Stop, 4),
                (Fault::StopDaemon, 2),
                (Fault::Cut, 2),
                (Fault::Kill, 2),
                (Fault::RestartEngine, 1),
            ],
            Self::WrongTime => vec![(Fault::LoseLog, 10), (Fault::Kill, 10)],
        }
    }

    /// How often each fault happens in one run: some never, and some often.
    fn draw_weights(self, rng: &mut Rng) -> Vec<(Fault, u32)> {
        let factors: &[u32] = match self {
            Self::Journal | Self::Engine => &[0, 0, 1, 1, 3],
            _ => &[0, 1, 1, 2],
        };
        let mut weights = self.weights();
        for (fault, often) in &mut weights {
            // The main fault of a run always happens in it.
            let is_theme = *fault == Fault::LoseLog
                || self == Self::LostLog && *fault == Fault::KillDaemon
                || self == Self::SlowEngine && *fault == Fault::StallCalls;
            *often *= if is_theme { 1 } else { factors[rng.usize(0..factors.len())] };
        }
        match self {
            Self::Journal | Self::BadDisk => {}
            // Tokens grow only if all hosts report in time which tokens they received.
            Self::WrongTime => weights.push((Fault::Heal, 800)),
            Self::LostLog => {
                weights.push((Fault::Heal, rng.u32(60..250)));
                // In every run these would hide the effects of a loss alone.
                if rng.u8(0..4) == 0 {
                    weights.extend([(Fault::Freeze, 3), (Fault::Fence, 3), (Fault::Reboot, 2)]);
                }
            }
            _ => weights.push((Fault::Heal, rng.u32(5..20))),
        }
        weights
    }
}

impl FaultProfile {
    pub(super) fn draw(rng: &mut Rng, over_engine: bool) -> Self {
        let kind = Kind::draw(rng, over_engine);
        let is_usual = matches!(kind, Kind::Journal | Kind::Engine);
        // A run contains many short TTLs, so conditions that depend on the TTL coincide more often.
        let ttl_ms = match kind {
            Kind::NearTtl | Kind::SlowEngine => [300, 400, 600][rng.usize(0..3)],
            Kind::LostLog => [300, 400][rng.usize(0..2)],
            Kind::Restarts => [600, 1_200][rng.usize(0..2)],
            _ => 1_200,
        };
        // Half of the runs have no time to spare, and some ask commands to end long before they
        // must.
        let usual = (ttl_ms / 6, ttl_ms / 12);
        let early = (ttl_ms / 3, ttl_ms / 12);
        let (grace_ms, margin_ms) = [(20, 30), (20, 30), usual, early][rng.usize(0..4)];
        let lasts_ms = match kind {
            Kind::NearTtl => Some(ttl_ms / 2..=ttl_ms * 3 / 2),
            Kind::SlowEngine => Some(ttl_ms..=2 * ttl_ms),
            Kind::Restarts => Some(0..=ttl_ms * 3 / 2),
            Kind::LostLog => Some(ttl_ms..=3 * ttl_ms),
            _ => None,
        };
        let slow_answers_ms = match kind {
            Kind::SlowEngine => rng.u64(ttl_ms / 4..ttl_ms),
            _ => 0,
        };
        Self {
            hosts: if over_engine { [2, 2, 2, 3][rng.usize(0..4)] } else { 1 },
            ttl_ms,
            grace_ms,
            margin_ms,
            snapshot_batches: rng.u64(4..60),
            slow_answers_ms,
            often: kind.draw_weights(rng),
            lasts_ms,
            has_victim: !is_usual && over_engine,
            rates: if rng.bool() { 995..=1004 } else { 999..=1001 },
            is_wrong_time: kind == Kind::WrongTime || !over_engine && rng.u8(0..4) == 0,
            started_by_ms: if kind == Kind::LostLog { rng.u64(0..4 * ttl_ms) } else { 0 },
            demand: kind.demand(rng, ttl_ms),
            busy: if is_usual { rng.u32(50..400) } else { rng.u32(40..250) },
            programs: if is_usual { 24 } else { 6 },
            faults_until_ms: 4_000,
            kind,
        }
    }

    /// Whether the engine may lose the end of its log.
    pub(super) fn loses_log(&self) -> bool {
        self.often.iter().any(|(fault, _)| *fault == Fault::LoseLog)
    }

    /// How long a fault lasts.
    pub(super) fn draw_time(&self, rng: &mut Rng) -> u64 {
        match &self.lasts_ms {
            Some(lasts_ms) => rng.u64(lasts_ms.clone()),
            // These times include a wait, a lease, and the time that the daemon waits for clients
            // to return.
            None if rng.bool() => rng.u64(0..100),
            None => rng.u64(0..3_000),
        }
    }
}

impl Kind {
    fn demand(self, rng: &mut Rng, ttl_ms: u64) -> Demand {
        let all: Vec<usize> = (0..KEYS.len()).collect();
        let few = [&[MUTEX][..], &[MUTEX, 5], &[1, 2, MUTEX]][rng.usize(0..3)].to_vec();
        let usual = Demand {
            keys: all.clone(),
            writes: 2,
            short_ms: 200,
            long: 2,
            long_ms: 1_500,
            has_leases: true,
            is_nested: true,
        };
        if matches!(self, Self::Journal | Self::BadDisk) {
            return usual;
        }
        // Keys that many ask for change hands often. Keys that no other command asks for are held
        // for long.
        let some = if rng.u8(0..3) == 0 { all } else { few.clone() };
        let is_nested = rng.u8(0..4) == 0;
        let of_ttl = Demand { short_ms: ttl_ms / 3, is_nested, ..usual.clone() };
        match self {
            Self::Journal | Self::BadDisk | Self::Engine => usual,
            Self::Restarts => Demand { long_ms: ttl_ms, is_nested: false, ..usual },
            Self::NearTtl => {
                let long_ms = [ttl_ms / 2, 2 * ttl_ms, 4 * ttl_ms][rng.usize(0..3)];
                let has_leases = rng.bool();
                Demand { keys: some, writes: 4, long: 6, long_ms, has_leases, ..of_ttl }
            }
            Self::SlowEngine => {
                let long_ms = [3 * ttl_ms, 6 * ttl_ms][rng.usize(0..2)];
                let has_leases = rng.bool();
                Demand { keys: some, writes: 4, long: 7, long_ms, has_leases, ..of_ttl }
            }
            // Leases of the lost part are lost, and no process ends the commands that rely on them.
            Self::LostLog => Demand {
                keys: few,
                writes: 4,
                long: 3,
                long_ms: [ttl_ms, 2 * ttl_ms][rng.usize(0..2)],
                has_leases: false,
                ..of_ttl
            },
            Self::WrongTime => Demand {
                keys: few,
                writes: 4,
                long: 4,
                long_ms: ttl_ms,
                has_leases: false,
                is_nested: false,
                ..usual
            },
        }
    }
}
