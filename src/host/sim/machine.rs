//! A machine: its clock, the deadline pages in its memory, and the processes that hold locks. Each
//! process stands for a wrapper and the tree of its command.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::daemon::Daemon;
use crate::core::{Item, ProcessId, Tag, Token, UnixMillis};
use crate::host::{Mark, Member, Memory};
use crate::log::engine::Identity;
use crate::log::engine::simulated::Link;

/// What a daemon shares with the wrappers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    pub(super) term_at: u64,
    pub(super) kill_at: u64,
    pub(super) lost_ms: Option<u64>,
}

/// Something that a process has.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) item: Item,
    pub(super) token: Token,
    pub(super) page: usize,
}

/// What a process is about.
#[derive(Clone, Debug)]
pub(super) enum Doing {
    /// It asks for the next item of its plan as soon as there is a daemon.
    Asking(Tag),
    /// It was granted what it asked for, and has not looked yet.
    Granted(Held),
    /// It works until then.
    Working(u64),
}

/// A process.
#[derive(Clone, Debug)]
pub(super) struct Proc {
    pub(super) id: ProcessId,
    plan: Vec<(Item, u64)>,
    pub(super) doing: Doing,
    pub(super) holds: Vec<Held>,
    pub(super) alive: bool,
    /// The whole of it is stopped until then.
    pub(super) stopped_until: u64,
    /// Only its wrapper is.
    pub(super) wrapper_stopped_until: u64,
    deaf: bool,
    dying_at: Option<u64>,
}

/// What daemons keep on the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Disk {
    /// Survives a reboot.
    synced: Memory,
    /// The record of owners, which is not synced.
    told: Token,
    mark: Option<Mark>,
}

/// So many tokens are reserved at a time.
const TOKENS_RESERVED: u64 = 8;

impl Disk {
    /// What a daemon finds at its start.
    pub(super) fn memory(&self) -> Memory {
        let told = self.told.max(self.synced.told);
        Memory { told, mark: self.mark, ..self.synced }
    }

    pub(super) fn joined(&mut self, member: &Member) {
        self.synced.epoch = member.memory().epoch;
    }

    /// A process is about to be told a token.
    pub(super) fn tell(&mut self, token: Token, member: &Member) {
        if token > self.synced.bound {
            self.synced.told = member.memory().told;
            self.synced.bound = Token(token.0 + TOKENS_RESERVED);
        }
        self.told = self.told.max(token);
        self.mark = member.mark();
    }

    fn reboot(&mut self) {
        *self = Self { synced: self.synced, ..Self::default() };
    }
}

/// A machine.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) identity: Identity,
    /// What its clock shows at the beginning of this boot, and when that was.
    started: (u64, u64),
    /// By how many thousandths it runs fast, less 1000.
    rate: u64,
    pub(super) pages: Vec<Page>,
    pub(super) procs: BTreeMap<u32, Proc>,
    pub(super) daemon: Option<Box<Daemon>>,
    pub(super) daemon_back_ms: u64,
    pub(super) frozen_until: u64,
    pub(super) link: Link,
    pub(super) disk: Disk,
    /// By how many milliseconds its time of day is ahead of true time.
    unix_ahead_ms: u64,
    next_pid: u32,
    boots: u64,
    grace_ms: u64,
}

impl Machine {
    pub(super) fn new(rng: &mut Rng, number: usize, grace_ms: u64) -> Self {
        let identity = Identity {
            label: format!("host{number}"),
            machine: format!("machine{number}"),
            boot: "1".to_owned(),
            pid_namespace: 1,
            uid: 0,
            dir: "/run/canal".to_owned(),
        };
        Self {
            identity,
            started: (rng.u64(0..100_000), 0),
            rate: rng.u64(996..=1004),
            pages: Vec::new(),
            procs: BTreeMap::new(),
            daemon: None,
            daemon_back_ms: 0,
            frozen_until: 0,
            link: Link::new(15),
            disk: Disk::default(),
            unix_ahead_ms: rng.u64(1_000_000..1_000_050),
            next_pid: 100,
            boots: 1,
            grace_ms,
        }
    }

    /// CLOCK_BOOTTIME.
    pub(super) fn clock(&self, true_ms: u64) -> u64 {
        self.started.0 + (true_ms - self.started.1) * self.rate / 1000
    }

    /// The time of day.
    pub(super) fn unix(&self, true_ms: u64) -> UnixMillis {
        UnixMillis(self.unix_ahead_ms + true_ms)
    }

    pub(super) fn begin(&mut self, rng: &mut Rng, plan: Vec<(Item, u64)>) {
        self.next_pid += 1;
        let id = ProcessId { pid: self.next_pid, started: self.boots, inode: 0 };
        let proc = Proc {
            id,
            plan,
            doing: Doing::Asking(Tag(rng.u128(..))),
            holds: Vec::new(),
            alive: true,
            stopped_until: 0,
            wrapper_stopped_until: 0,
            deaf: rng.u8(0..4) == 0,
            dying_at: None,
        };
        self.procs.insert(id.pid, proc);
    }

    /// The power fails.
    pub(super) fn reboot(&mut self, rng: &mut Rng, true_ms: u64) {
        self.boots += 1;
        self.identity.boot = self.boots.to_string();
        self.started = (rng.u64(0..5_000), true_ms);
        self.procs.clear();
        self.pages.clear();
        self.daemon = None;
        self.disk.reboot();
        self.link.reset();
    }

    /// Wrappers and commands run for a moment.
    pub(super) fn run(&mut self, rng: &mut Rng, true_ms: u64) {
        let now = self.clock(true_ms);
        for proc in self.procs.values_mut().filter(|proc| proc.alive) {
            let Self { pages, grace_ms, .. } = self;
            if true_ms >= proc.stopped_until && true_ms >= proc.wrapper_stopped_until {
                proc.watch(rng, now, pages, *grace_ms);
                proc.look(now, pages);
            }
            if proc.alive && true_ms >= proc.stopped_until {
                proc.work(rng, now);
            }
        }
        self.procs.retain(|_, proc| proc.alive);
    }
}

impl Proc {
    /// What it asks for now.
    pub(super) fn asks(&self) -> Option<(Tag, &Item)> {
        match &self.doing {
            Doing::Asking(tag) => Some((*tag, &self.plan.get(self.holds.len())?.0)),
            _ => None,
        }
    }

    pub(super) fn has_something(&self) -> bool {
        !self.holds.is_empty() || matches!(self.doing, Doing::Granted(_))
    }

    pub(super) fn die(&mut self) {
        self.alive = false;
    }

    /// TERM: it ends after a while, unless it is deaf to it.
    pub(super) fn term(&mut self, rng: &mut Rng, now: u64, grace_ms: u64) {
        if !self.deaf && self.dying_at.is_none() {
            self.dying_at = Some(now + rng.u64(0..=grace_ms / 2));
        }
    }

    /// Both the wrapper and the daemon do this by the pages.
    pub(super) fn watch(&mut self, rng: &mut Rng, now: u64, pages: &[Page], grace_ms: u64) {
        for page in self.holds.iter().map(|held| pages[held.page]).collect::<Vec<_>>() {
            let lost = page.lost_ms.is_some_and(|at| now >= at + grace_ms);
            if now >= page.kill_at || lost {
                return self.die();
            }
            if now >= page.term_at || page.lost_ms.is_some() {
                self.term(rng, now, grace_ms);
            }
        }
    }

    /// Takes what was granted, if it may still.
    fn look(&mut self, now: u64, pages: &[Page]) {
        let Doing::Granted(held) = &self.doing else { return };
        let page = pages[held.page];
        let in_time = now < page.term_at && page.lost_ms.is_none();
        if !in_time {
            return self.die();
        }
        let work_ms = self.plan.get(self.holds.len()).map_or(0, |step| step.1);
        self.holds.push(held.clone());
        self.doing = Doing::Working(now + work_ms);
    }

    fn work(&mut self, rng: &mut Rng, now: u64) {
        if self.dying_at.is_some_and(|at| now >= at) {
            return self.die();
        }
        if let Doing::Working(until) = self.doing
            && now >= until
        {
            if self.holds.len() == self.plan.len() {
                return self.die();
            }
            self.doing = Doing::Asking(Tag(rng.u128(..)));
        }
    }
}
