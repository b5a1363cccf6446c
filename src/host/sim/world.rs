//! A world: an engine, machines and time, in which everything that can go wrong does.

use fastrand::Rng;

use super::daemon::{Around, Daemon};
use super::faults::{Fault, draw};
use super::history::History;
use super::machine::Machine;
use crate::core::{Ask, Item, Key, View};
use crate::host::{Now, Settings};
use crate::log::engine::simulated::{Flavour, Server};

/// How long a step is, in milliseconds of true time.
pub(super) const STEP_MS: u64 = 10;
const TTL_MS: u64 = 1200;
/// Faults happen until then.
const FAULTS_UNTIL_MS: u64 = 5_000;
/// By then everything must be over.
const OVER_MS: u64 = 40_000;

/// Which rules are broken on purpose, to see that it is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rulebook {
    /// If some are named, only these things go wrong, and there is no time to lose.
    pub(super) focus: &'static [Fault],
    /// A renewal counts from when it was answered.
    pub(super) late_start: bool,
    /// The engine loses what it acknowledged.
    pub(super) rewrite: bool,
}

/// What a world was like, to see that something happened in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) grants: u64,
    pub(super) hosts_gone: u64,
    pub(super) adoptions: u64,
    pub(super) deadlocks: u64,
    pub(super) losses: u64,
    pub(super) snapshots: u64,
}

/// Everything there is.
#[derive(Debug)]
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) now_ms: u64,
    pub(super) server: Server,
    pub(super) down_until: u64,
    pub(super) machines: Vec<Machine>,
    pub(super) history: History,
    pub(super) rules: Rulebook,
    settings: Settings,
    flaky: bool,
    pub(super) often: Vec<(Fault, u32)>,
    /// Who has bad luck.
    pub(super) victim: usize,
    pub(super) earlier: Option<Server>,
    /// How many lives the engine has had.
    pub(super) lives: u64,
    pub(super) seen: Seen,
}

/// What a key has room for.
pub(super) fn capacity(key: &str) -> u64 {
    if key == "a" { 2 } else { 1 }
}

fn wish(rng: &mut Rng) -> Item {
    let name = ["a", "b", "b/c", "d"][rng.usize(0..4)];
    let key = Key::new(name).unwrap();
    let view = Some(View::Slots { slots: capacity(name) });
    let counted = Ask::slots(rng.u64(1..=capacity(name)), view);
    let ask = match name {
        "a" | "d" => counted,
        _ if rng.u8(0..3) == 0 => Ask::Read,
        _ => Ask::Write,
    };
    Item { key, ask }
}

fn plan(rng: &mut Rng) -> Vec<(Item, u64)> {
    let mut plan: Vec<(Item, u64)> = Vec::new();
    for _ in 0..rng.usize(1..=2) {
        let item = wish(rng);
        if plan.iter().all(|(other, _)| other.key != item.key) {
            let work_ms = if rng.u8(0..3) == 0 { 2_500 } else { 150 };
            plan.push((item, rng.u64(0..=work_ms)));
        }
    }
    plan
}

impl World {
    pub(super) fn new(seed: u64, rules: Rulebook) -> Self {
        let mut rng = Rng::with_seed(seed);
        // Half of the worlds have no time to lose.
        let tight = rng.bool() || !rules.focus.is_empty();
        let settings = Settings {
            ttl_ms: TTL_MS,
            grace_ms: tight.then_some(20),
            margin_ms: tight.then_some(30),
            snapshot_batches: rng.u64(4..60),
            ..Settings::default()
        };
        let grace_ms = settings.check(TTL_MS).unwrap().grace_ms;
        let flavour = if rng.bool() { Flavour::Counting } else { Flavour::Watching };
        let mut server = Server::new(flavour);
        server.live_anew(1, false);
        let often = draw(&mut rng, &rules);
        let hosts = [2, 2, 2, 3, 3, 4][rng.usize(0..6)];
        let flaky = rng.bool();
        let mut machines: Vec<Machine> =
            (0..hosts).map(|number| Machine::new(&mut rng, number, grace_ms)).collect();
        for machine in &mut machines {
            machine.link.repeat = if flaky { 50 } else { 0 };
        }
        Self {
            rng,
            now_ms: 0,
            server,
            down_until: 0,
            machines,
            history: History::new(rules.rewrite),
            rules,
            settings,
            flaky,
            often,
            victim: 0,
            earlier: None,
            lives: 1,
            seen: Seen::default(),
        }
    }

    /// Runs it to its end. What is wrong, or what it was like.
    pub(super) fn run(mut self) -> Result<Seen, String> {
        while self.now_ms < OVER_MS {
            self.now_ms += STEP_MS;
            let faults = self.now_ms < FAULTS_UNTIL_MS;
            if faults {
                self.ask();
                self.break_something();
            } else {
                self.mend();
            }
            self.step();
            self.check()?;
            if !faults && self.is_over() {
                return self.conclude();
            }
        }
        Err(format!("something is stuck: {}", self.what_is_left()))
    }

    fn ask(&mut self) {
        if self.rng.u8(0..6) == 0 {
            let at = self.rng.usize(0..self.machines.len());
            if self.machines[at].procs.len() < 4 && self.now_ms >= self.machines[at].frozen_until {
                let plan = plan(&mut self.rng);
                self.machines[at].begin(&mut self.rng, plan);
            }
        }
    }

    pub(super) fn step(&mut self) {
        self.serve_calls();
        for at in 0..self.machines.len() {
            if self.now_ms < self.machines[at].frozen_until {
                continue;
            }
            let daemon_first = self.rng.bool();
            if daemon_first {
                self.run_daemon(at);
            }
            // What was frozen is watched by its wrappers before it runs on.
            self.machines[at].run(&mut self.rng, self.now_ms);
            if !daemon_first {
                self.run_daemon(at);
            }
        }
    }

    fn serve_calls(&mut self) {
        for (at, machine) in self.machines.iter().enumerate() {
            if machine.link.cut {
                self.server.disconnect(at);
            }
        }
        if self.now_ms < self.down_until {
            return;
        }
        for at in 0..self.machines.len() {
            let link = &mut self.machines[at].link;
            while let Some((connection, call)) = link.arrived(self.now_ms) {
                let gap = self.rng.u64(1..4);
                let late = connection != link.connection;
                let follows = matches!(
                    call,
                    crate::log::engine::Call::Load | crate::log::engine::Call::Follow { .. }
                );
                if late && follows {
                    continue;
                }
                if late && self.server.is_in_new_era() {
                    continue;
                }
                let answers = self.server.calls(at, self.now_ms, gap, call);
                let reached = !late && !link.cut;
                for answer in answers.into_iter().filter(|_| reached) {
                    link.answer(&mut self.rng, self.now_ms, answer);
                }
            }
        }
        for at in 0..self.machines.len() {
            let link = &mut self.machines[at].link;
            // A notification can be lost; the next one brings what it would have.
            if self.flaky && self.rng.u8(0..8) == 0 {
                continue;
            }
            if let Some(batches) = self.server.push(at) {
                link.answer(&mut self.rng, self.now_ms, batches);
            }
        }
    }

    fn run_daemon(&mut self, at: usize) {
        let now_ms = self.now_ms;
        let machine = &mut self.machines[at];
        let clock = machine.clock(now_ms);
        if machine.daemon.is_none() && now_ms >= machine.daemon_back_ms {
            machine.link.reset();
            self.server.disconnect(at);
            let nonce = self.rng.u128(..);
            let now = Now { boot_ms: clock, unix: machine.unix(now_ms) };
            let (identity, memory) = (machine.identity.clone(), machine.disk.memory());
            let daemon = Daemon::start(self.settings, identity, nonce, now, memory);
            machine.daemon = Some(Box::new(daemon));
        }
        let Some(mut daemon) = machine.daemon.take() else { return };
        if now_ms >= daemon.stopped_until {
            let answers: Vec<_> = std::iter::from_fn(|| machine.link.received(now_ms)).collect();
            let unix = machine.unix(now_ms);
            let mut around = Around {
                unix,
                disk: &mut machine.disk,
                rng: &mut self.rng,
                clock,
                procs: &mut machine.procs,
                pages: &mut machine.pages,
                history: &mut self.history,
                rules: &self.rules,
                grace_ms: self.settings.check(TTL_MS).unwrap().grace_ms,
            };
            let calls = daemon.run(&mut around, answers);
            for call in calls {
                if matches!(call, crate::log::engine::Call::Store(_)) {
                    self.seen.snapshots += 1;
                }
                machine.link.send(&mut self.rng, now_ms, call);
            }
            if let Some(why) = &daemon.unable {
                self.history.wrong = Some(format!("a host is unable: {why}"));
            }
        }
        self.seen.losses += u64::from(std::mem::take(&mut daemon.lost));
        machine.daemon = Some(daemon);
    }
}
