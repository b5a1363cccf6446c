//! The engine of a run, and the network between it and the machines.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use fastrand::Rng;

use super::fault_profile::FaultProfile;
use super::machine::unix_ms;
use super::rule::{Rule, is_broken};
use canal_core::UnixMillis;
use canal_log::engine::{Answer, Call, Engine, Position};
use canal_log::sim::engine::{self as simulated, Counts, Flavour, Server};
use canal_log::sim::network::Link;

/// The messages in flight between one machine and the engine.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) link: Link,
    rng: Rng,
    now_ms: u64,
    /// Whether a daemon has connected since the engine's last check.
    is_new: bool,
    lets_rest: bool,
}

/// The engine as the daemon of one machine sees it.
#[derive(Debug)]
struct Remote(Rc<RefCell<Wire>>);

impl Engine for Remote {
    fn call(&mut self, call: Call) {
        let Wire { link, rng, now_ms, .. } = &mut *self.0.borrow_mut();
        link.send(rng, *now_ms, call);
    }

    fn lets_rest(&self) -> bool {
        self.0.borrow().lets_rest
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<Answer> {
        let Wire { link, now_ms, .. } = &mut *self.0.borrow_mut();
        link.received(*now_ms).map_or(Poll::Pending, Poll::Ready)
    }
}

#[derive(Debug)]
pub(super) struct Network {
    server: Server,
    pub(super) wires: Vec<Rc<RefCell<Wire>>>,
    /// The engine is down until this time.
    down_until: u64,
    /// How many lives the engine has had.
    lives: u64,
    /// Whether notifications can be lost and answers duplicated.
    is_flaky: bool,
    is_wrong_time: bool,
    /// Hosts make a snapshot after this many batches.
    snapshot_batches: u64,
    /// Earlier states of the engine, if it may lose the end of its log.
    past: Option<Past>,
}

/// States of the engine to which it may fall back.
#[derive(Debug, Default)]
struct Past {
    /// The states, each with the time at which it began.
    states: Vec<(u64, Server)>,
    head: Position,
    /// The usual maximum of the lost time, in milliseconds.
    lost_ms: u64,
}

/// How many states to keep. Beyond that, a random one is dropped.
const STATES_MAX: usize = 60;

impl Past {
    fn note(&mut self, rng: &mut Rng, now_ms: u64, server: &Server) {
        if server.head() == self.head {
            return;
        }
        self.head = server.head();
        if self.states.len() == STATES_MAX {
            self.states.remove(rng.usize(0..STATES_MAX));
        }
        self.states.push((now_ms, server.clone()));
    }

    /// Takes one of the states, and forgets all later ones.
    fn take(&mut self, rng: &mut Rng, now_ms: u64) -> Option<Server> {
        let lost_ms = if rng.u8(0..4) == 0 { now_ms } else { self.lost_ms };
        let until = now_ms.saturating_sub(rng.u64(0..=lost_ms));
        let number = self.states.iter().take_while(|(since, _)| *since <= until).count();
        self.states.truncate(number.max(1));
        self.states.pop().map(|(_, server)| server)
    }
}

impl Network {
    pub(super) fn new(rng: &mut Rng, profile: &FaultProfile) -> Self {
        let flavour = if rng.bool() { Flavour::Counting } else { Flavour::Watching };
        let mut server = Server::new(flavour);
        server.careless = is_broken(Rule::HistoriesAreCompared);
        server.live_anew(1, false);
        let is_flaky = rng.bool();
        let lets_rest = server.lets_rest();
        let wires = (0..profile.hosts).map(|_| {
            let mut link = Link::new(15);
            link.slow_answers_ms = if rng.bool() { profile.slow_answers_ms } else { 0 };
            link.repeat = if is_flaky { 50 } else { 0 };
            let rng = Rng::with_seed(rng.u64(..));
            Rc::new(RefCell::new(Wire { link, rng, now_ms: 0, is_new: false, lets_rest }))
        });
        Self {
            server,
            wires: wires.collect(),
            down_until: 0,
            lives: 1,
            is_flaky,
            is_wrong_time: profile.is_wrong_time,
            snapshot_batches: profile.snapshot_batches,
            past: profile
                .loses_log()
                .then(|| Past { lost_ms: 2 * profile.ttl_ms, ..Past::default() }),
        }
    }

    /// The position of the last batch.
    pub(super) fn head(&self) -> Position {
        self.server.head()
    }

    /// Counts of events at the engine.
    pub(super) fn counts(&self) -> Counts {
        self.server.counts
    }

    /// Makes the engine available to a daemon that starts now on a machine.
    pub(super) fn offer(&self, at: usize) {
        let wire = self.wires[at].clone();
        simulated::offer(self.snapshot_batches, move || {
            let mut opened = wire.borrow_mut();
            opened.link.reset();
            opened.is_new = true;
            drop(opened);
            Box::new(Remote(wire.clone()))
        });
    }

    /// Delivers calls to the engine, and its answers to the machines.
    pub(super) fn step(&mut self, rng: &mut Rng, now_ms: u64) {
        for (at, wire) in self.wires.iter().enumerate() {
            let mut wire = wire.borrow_mut();
            wire.now_ms = now_ms;
            let is_new = std::mem::take(&mut wire.is_new);
            if wire.link.cut || is_new {
                self.server.disconnect(at);
            }
        }
        self.server.unix = UnixMillis(unix_ms(now_ms, self.is_wrong_time));
        if now_ms < self.down_until {
            return;
        }
        for at in 0..self.wires.len() {
            self.serve(rng, now_ms, at);
        }
        for (at, wire) in self.wires.iter().enumerate() {
            // A notification can be lost; the next one includes its content.
            if self.is_flaky && rng.u8(0..8) == 0 {
                continue;
            }
            if let Some(batches) = self.server.push(at) {
                wire.borrow_mut().link.answer(rng, now_ms, batches);
            }
        }
        if let Some(past) = &mut self.past {
            past.note(rng, now_ms, &self.server);
        }
    }

    fn serve(&mut self, rng: &mut Rng, now_ms: u64, at: usize) {
        let Wire { link, .. } = &mut *self.wires[at].borrow_mut();
        while let Some((connection, call)) = link.arrived(now_ms) {
            let gap = rng.u64(1..4);
            if connection != link.connection {
                // It can still take effect, but neither its answer nor a batch reaches anyone.
                let is_lost =
                    matches!(call, Call::Load | Call::Follow { .. } | Call::Attend { .. });
                if !is_lost && !self.server.is_in_new_era() {
                    self.server.call(at, now_ms, gap, call);
                }
                continue;
            }
            let answers = self.server.calls(at, now_ms, gap, call);
            let reaches = !link.cut;
            for answer in answers.into_iter().filter(|_| reaches) {
                link.answer(rng, now_ms, answer);
            }
        }
    }

    /// Stops the engine, and starts it again later.
    pub(super) fn restart(&mut self, rng: &mut Rng, now_ms: u64, until: u64) {
        self.down_until = until;
        self.lives += 1;
        self.server.live_anew(self.lives, false);
        for wire in &self.wires {
            wire.borrow_mut().link.cut(rng, now_ms);
        }
    }

    /// Restarts the engine without the end of its log.
    pub(super) fn lose_log(&mut self, rng: &mut Rng, now_ms: u64) {
        let Some(earlier) = self.past.as_mut().and_then(|past| past.take(rng, now_ms)) else {
            return;
        };
        self.restart(rng, now_ms, now_ms);
        // Another server has taken over. Calls in flight to this one are lost.
        self.wires.iter().for_each(|wire| wire.borrow_mut().link.forget_calls());
        self.server.fall_back(now_ms, earlier, self.lives);
    }

    /// Makes the engine report to a host that its membership has ended, as if another host wrote in
    /// its name.
    pub(super) fn fence(&mut self, rng: &mut Rng, now_ms: u64, at: usize) {
        let link = &mut self.wires[at].borrow_mut().link;
        let Some(host) = self.server.incarnation_of(at).filter(|_| !link.cut) else { return };
        let why = "somebody else appends in its name".to_owned();
        link.answer(rng, now_ms, Answer::Fenced { host, why });
    }

    /// Ends all faults.
    pub(super) fn mend(&mut self, now_ms: u64) {
        self.down_until = self.down_until.min(now_ms);
        for wire in &self.wires {
            let link = &mut wire.borrow_mut().link;
            link.heal(now_ms);
            link.flow(now_ms);
            link.slow_ms = link.slow_ms.min(30);
            link.slow_answers_ms = 0;
        }
    }
}
