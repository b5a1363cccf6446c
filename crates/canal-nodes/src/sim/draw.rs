//! Draws the properties of a world from its seed.

use fastrand::Rng;

use super::host::Job;
use crate::{Millis, Plan, Require};
use canal_core::{NodeId, OverNodes, RunId};

/// The properties of a run.
#[derive(Clone, Debug)]
pub(super) struct FaultProfile {
    pub(super) nodes: usize,
    pub(super) hosts: usize,
    /// The number of requests of each host.
    pub(super) jobs: u32,
    pub(super) keys: u8,
    pub(super) ttl_ms: u64,
    /// How long commands run at most; 0 for a minute each.
    pub(super) runs_ms: u64,
    /// The requirements that are drawn from.
    requires: Vec<Require>,
    /// How many requests of 10 use a list other than that of all nodes.
    other_lists: u8,
    /// How many requests of 10 do not wait, or only for some time.
    impatient: u8,
    /// How many of 10 of those do not wait at all.
    hasty: u8,
    /// Whether some paths are slow.
    pub(super) has_slow_paths: bool,
    /// The mean time between two faults, in milliseconds.
    pub(super) faults_ms: u64,
    /// How long faults happen.
    pub(super) troubled_ms: u64,
    /// The weights of cuts, broken connections, stops and kills of coordinators, restarts, reboots,
    /// nodes that lose their state, grants that are broken by force before their confirmation, and
    /// renewals by another party.
    pub(super) weights: [u32; 9],
    /// The longest duration of a cut, a stop or an absence.
    pub(super) lasts_ms: u64,
    /// This node is away until all requests that do not need it have finished.
    pub(super) is_off: Option<usize>,
    /// In how many of 10 faults nodes begin jobs of their own.
    pub(super) own_jobs: u8,
}

impl FaultProfile {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let nodes = rng.usize(1..=5);
        let ttl_ms = [10_000, 10_000, 20_000, 60_000][rng.usize(0..4)];
        let exclusive = [Require::All, Require::Majority];
        let every = [
            Require::All,
            Require::Majority,
            Require::Any,
            Require::AllAlive,
            Require::MajorityAlive,
        ];
        let requires = match rng.u8(0..4) {
            0 => every.to_vec(),
            1 => vec![Require::Majority],
            _ => exclusive.to_vec(),
        };
        let mut weights = [0; 9].map(|_| rng.u32(0..10));
        if rng.bool() {
            weights[rng.usize(0..9)] += 40;
        }
        weights[0] += 1;
        Self {
            nodes,
            hosts: rng.usize(2..=4),
            jobs: rng.u32(1..=5),
            keys: if rng.u8(0..3) == 0 { 2 } else { 1 },
            ttl_ms,
            runs_ms: [2_000, 30_000, 120_000][rng.usize(0..3)],
            requires,
            other_lists: if rng.u8(0..3) == 0 { 5 } else { 0 },
            impatient: if rng.u8(0..3) == 0 { 5 } else { 0 },
            hasty: 5,
            has_slow_paths: rng.u8(0..4) == 0,
            faults_ms: rng.u64(500..20_000),
            troubled_ms: rng.u64(60_000..400_000),
            weights,
            lasts_ms: [2_000, 20_000, 90_000][rng.usize(0..3)],
            is_off: (nodes > 1 && rng.u8(0..4) == 0).then(|| rng.usize(0..nodes)),
            own_jobs: if rng.u8(0..3) == 0 { 3 } else { 0 },
        }
    }

    /// Draws two requests for one key that do not wait, without faults.
    pub(super) fn draw_two_crons(rng: &mut Rng) -> Self {
        Self {
            nodes: rng.usize(1..=5),
            hosts: 2,
            jobs: 1,
            keys: 1,
            ttl_ms: 60_000,
            runs_ms: 0,
            requires: vec![[Require::All, Require::Majority][rng.usize(0..2)]],
            other_lists: 0,
            impatient: 10,
            hasty: 10,
            has_slow_paths: false,
            faults_ms: 0,
            troubled_ms: 0,
            weights: [0; 9],
            lasts_ms: 0,
            is_off: None,
            own_jobs: 0,
        }
    }

    /// Draws majorities of overlapping lists, without faults.
    pub(super) fn draw_lists(rng: &mut Rng) -> Self {
        Self {
            nodes: rng.usize(3..=6),
            hosts: rng.usize(2..=4),
            jobs: 3,
            runs_ms: 30_000,
            requires: vec![Require::Majority],
            other_lists: 10,
            impatient: 0,
            ..Self::draw_two_crons(rng)
        }
    }

    /// Draws a request of a host at the time `asked_at` of its clock.
    pub(super) fn draw_job(&self, rng: &mut Rng, run: u32, asked_at: Millis) -> Job {
        let require = self.requires[rng.usize(0..self.requires.len())];
        let mut at: Vec<usize> = (0..self.nodes).collect();
        if rng.u8(0..10) < self.other_lists {
            let kept = rng.usize(1..=self.nodes);
            rng.shuffle(&mut at);
            at.truncate(kept);
            at.sort_unstable();
        }
        let nodes: Vec<NodeId> = at.iter().map(|at| NodeId(*at as u128)).collect();
        let wait_ms = match rng.u8(0..10) < self.impatient {
            true if rng.u8(0..10) < self.hasty => Some(0),
            true => Some(rng.u64(1_000..60_000)),
            false => None,
        };
        let over = OverNodes {
            run: RunId(run.into()),
            nodes: nodes.clone(),
            require: require.as_asked(),
            spare: false,
        };
        Job {
            run,
            key: rng.u8(0..self.keys),
            wires: vec![None; at.len()],
            at,
            plan: Plan { nodes, require, ttl_ms: self.ttl_ms, wait_ms, asked_at },
            over,
            runs_ms: if self.runs_ms == 0 { 60_000 } else { rng.u64(1..=self.runs_ms) },
            process: None,
            restarts_at: 0,
            checkpoint: None,
            command: None,
            is_done: false,
        }
    }
}
