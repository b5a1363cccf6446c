//! A thin model of a daemon as a node: its locks, and the clock that ends its leases.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::clock::Clock;
use super::rule::{Rule, is_broken};
use super::table::{Asked, LeaseName, Locks, Told};
use crate::{Millis, Refusal};
use canal_core::Token;

/// The longest TTL that a node grants, in milliseconds.
pub(super) const LONGEST_TTL_MS: u64 = 60_000;

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    clock: Clock,
    pub(super) locks: Locks,
    /// When each firm lease ends, by the node's clock, and its TTL.
    leases: BTreeMap<LeaseName, (Millis, u64)>,
    /// When the daemon runs again, in true time.
    pub(super) down_until: u64,
    /// When it begins to grant over nodes, by its own clock, after it recreated its state.
    grants_from: Millis,
    /// The leases that it lost with its state; because of them it grants nothing before that time.
    lost: Vec<LeaseName>,
    /// Its own jobs and when they end.
    jobs: Vec<(LeaseName, u64)>,
}

/// How a daemon ends and restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    Daemon,
    Machine,
    /// With the machine, and without its state.
    Blank,
}

impl Node {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let clock = Clock::draw(rng);
        // The nodes were set up at different times, and have granted more or fewer locks since.
        let locks = Locks::new(Token(rng.u64(1..1_000)));
        let (leases, jobs, lost) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { clock, locks, leases, down_until: 0, grants_from: 0, lost, jobs }
    }

    pub(super) fn is_up(&self, now: u64) -> bool {
        now >= self.down_until
    }

    /// The time of the next event that needs no message.
    pub(super) fn next_at(&self) -> u64 {
        let leases = self.leases.values().map(|(ends_at, _)| self.clock.when(*ends_at));
        let jobs = self.jobs.iter().map(|(_, ends_at)| *ends_at);
        leases.chain(jobs).min().unwrap_or(u64::MAX).max(self.down_until)
    }

    /// Ends everything that is due by now.
    pub(super) fn step(&mut self, now: u64) -> Vec<Told> {
        if !self.is_up(now) {
            return Vec::new();
        }
        let shown = self.clock.at(now);
        let leases = self.leases.iter().filter(|(_, (ends_at, _))| shown >= *ends_at);
        let jobs = self.jobs.iter().filter(|(_, ends_at)| now >= *ends_at);
        let over = leases.map(|(name, _)| *name).chain(jobs.map(|(name, _)| *name));
        let over: Vec<LeaseName> = over.collect();
        self.jobs.retain(|(_, ends_at)| now < *ends_at);
        over.into_iter().flat_map(|name| self.release(name)).collect()
    }

    /// How long it does not grant yet, if its state is new.
    pub(super) fn grants_in_ms(&self, now: u64) -> Option<Millis> {
        let left_ms = self.grants_from.saturating_sub(self.clock.at(now));
        (left_ms > 0 && !is_broken(Rule::BlankNodesWait)).then_some(left_ms)
    }

    pub(super) fn ask(&mut self, now: u64, asked: Asked) -> Vec<Told> {
        if let Some(left_ms) = self.grants_in_ms(now) {
            return vec![Told::Refused(asked.name, Refusal::NotYet(left_ms))];
        }
        self.locks.ask(asked)
    }

    /// Begins a job of the node itself, if the key is free.
    pub(super) fn begin_job(&mut self, name: LeaseName, key: u8, ends_at: u64) -> Vec<Told> {
        let told = self.locks.ask(Asked { name, key, over: None, no_wait: true });
        if told.iter().any(|told| matches!(told, Told::Granted(it, _) if *it == name)) {
            self.jobs.push((name, ends_at));
        }
        told
    }

    pub(super) fn confirm_at(
        &mut self,
        now: u64,
        name: LeaseName,
        token: Token,
        ttl_ms: u64,
    ) -> Result<(), Option<Token>> {
        let confirmed = self.locks.confirm_at(name, token);
        if self.locks.holds_firmly(name) {
            self.leases.insert(name, (self.clock.at(now) + ttl_ms, ttl_ms));
        }
        confirmed
    }

    /// Renews a firm lease, and no other. Returns the TTL in force: `new_ms` if that is longer.
    pub(super) fn renew(&mut self, now: u64, name: LeaseName, new_ms: u64) -> Option<u64> {
        let shown = self.clock.at(now);
        let (ends_at, ttl_ms) = self.leases.get_mut(&name)?;
        if new_ms > *ttl_ms || new_ms > 0 && is_broken(Rule::TtlOnlyGrows) {
            *ttl_ms = new_ms;
        }
        *ends_at = shown + *ttl_ms;
        Some(*ttl_ms)
    }

    /// The firm leases.
    pub(super) fn leases(&self) -> impl Iterator<Item = LeaseName> {
        self.leases.keys().copied()
    }

    pub(super) fn release(&mut self, name: LeaseName) -> Vec<Told> {
        self.leases.remove(&name);
        self.locks.release(name)
    }

    /// Whether no other request can get the hold of this one here: its lease is firm, or was lost
    /// with the node's state so recently that the node grants nothing.
    pub(super) fn keeps_run(&self, now: u64, run: u32) -> bool {
        let mut parts = self.locks.known().filter(|asked| asked.name.run == run);
        let holds = parts.any(|asked| self.locks.holds_firmly(asked.name));
        holds || self.has_lost(now) && self.lost.iter().any(|name| name.run == run)
    }

    /// Whether it is new or has lost its state, and therefore grants nothing.
    pub(super) fn has_lost(&self, now: u64) -> bool {
        self.clock.at(now) < self.grants_from
    }

    /// Ends the daemon, and starts it again at `until`. After that, no lease ends before its whole
    /// TTL has passed.
    pub(super) fn restart(&mut self, rng: &mut Rng, until: u64, how: Restart) {
        self.down_until = self.down_until.max(until);
        let shown = self.clock.at(self.down_until);
        match how {
            Restart::Daemon => self.locks.restart(),
            Restart::Machine => {
                self.locks.reboot();
                self.jobs.clear();
            }
            Restart::Blank => {
                self.lost.extend(self.leases.keys());
                self.leases.clear();
                self.jobs.clear();
                self.grants_from = shown + LONGEST_TTL_MS;
                // Its tokens begin at a number from the clock, which is larger than any earlier
                // token.
                self.locks = Locks::new(Token((1 << 30) + self.down_until * 100 + rng.u64(0..100)));
            }
        }
        for (ends_at, ttl_ms) in self.leases.values_mut() {
            *ends_at = shown + *ttl_ms;
        }
    }

    /// Whether no part of a request over nodes is left.
    pub(super) fn is_empty(&self) -> bool {
        self.locks.known().all(|asked| asked.over.is_none())
    }
}
