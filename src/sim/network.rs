//! The engine of a run, and the network between it and the machines.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use fastrand::Rng;

use crate::host::sim::link::Link;
use crate::host::sim::server::{Flavour, Server};
use crate::log::engine::{Answer, Call, Engine, simulated};

/// What is under way between one machine and the engine.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) link: Link,
    rng: Rng,
    now_ms: u64,
    /// Whether a daemon has connected since the engine looked last.
    is_new: bool,
}

/// The engine as the daemon of one machine sees it.
#[derive(Debug)]
struct Remote(Rc<RefCell<Wire>>);

impl Engine for Remote {
    fn call(&mut self, call: Call) {
        let Wire { link, rng, now_ms, .. } = &mut *self.0.borrow_mut();
        link.send(rng, *now_ms, call);
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<Answer> {
        let Wire { link, now_ms, .. } = &mut *self.0.borrow_mut();
        link.received(*now_ms).map_or(Poll::Pending, Poll::Ready)
    }
}

/// The engine and the network.
#[derive(Debug)]
pub(super) struct Network {
    server: Server,
    pub(super) wires: Vec<Rc<RefCell<Wire>>>,
    /// The engine is down until then.
    down_until: u64,
    /// How many lives the engine has had.
    lives: u64,
    /// Whether notifications get lost and answers come twice.
    is_flaky: bool,
}

impl Network {
    pub(super) fn new(rng: &mut Rng, hosts: usize) -> Self {
        let flavour = if rng.bool() { Flavour::Counting } else { Flavour::Watching };
        let mut server = Server::new(flavour);
        server.live_anew(1, false);
        let is_flaky = rng.bool();
        let wires = (0..hosts).map(|_| {
            let mut link = Link::new(15);
            link.repeat = if is_flaky { 50 } else { 0 };
            let rng = Rng::with_seed(rng.u64(..));
            Rc::new(RefCell::new(Wire { link, rng, now_ms: 0, is_new: false }))
        });
        Self { server, wires: wires.collect(), down_until: 0, lives: 1, is_flaky }
    }

    /// Lets a daemon that starts now on a machine find the engine.
    pub(super) fn offer(&self, at: usize) {
        let wire = self.wires[at].clone();
        simulated::offer(move || {
            let mut opened = wire.borrow_mut();
            opened.link.reset();
            opened.is_new = true;
            drop(opened);
            Box::new(Remote(wire.clone()))
        });
    }

    /// Carries calls to the engine, and its answers back.
    pub(super) fn step(&mut self, rng: &mut Rng, now_ms: u64) {
        for (at, wire) in self.wires.iter().enumerate() {
            let mut wire = wire.borrow_mut();
            wire.now_ms = now_ms;
            if wire.link.cut || std::mem::take(&mut wire.is_new) {
                self.server.disconnect(at);
            }
        }
        if now_ms < self.down_until {
            return;
        }
        for at in 0..self.wires.len() {
            self.serve(rng, now_ms, at);
        }
        for (at, wire) in self.wires.iter().enumerate() {
            // A notification can be lost; the next one brings what it would have.
            if self.is_flaky && rng.u8(0..8) == 0 {
                continue;
            }
            if let Some(batches) = self.server.push(at) {
                wire.borrow_mut().link.answer(rng, now_ms, batches);
            }
        }
    }

    fn serve(&mut self, rng: &mut Rng, now_ms: u64, at: usize) {
        let Wire { link, .. } = &mut *self.wires[at].borrow_mut();
        while let Some((connection, call)) = link.arrived(now_ms) {
            let gap = rng.u64(1..4);
            let is_late = connection != link.connection;
            let follows = matches!(call, Call::Load | Call::Follow { .. });
            if is_late && (follows || self.server.is_in_new_era()) {
                continue;
            }
            let answers = self.server.calls(at, now_ms, gap, call);
            let reaches = !is_late && !link.cut;
            for answer in answers.into_iter().filter(|_| reaches) {
                link.answer(rng, now_ms, answer);
            }
        }
    }

    /// The engine stops, and starts again later.
    pub(super) fn restart(&mut self, rng: &mut Rng, now_ms: u64, until: u64) {
        self.down_until = until;
        self.lives += 1;
        self.server.live_anew(self.lives, false);
        for wire in &self.wires {
            wire.borrow_mut().link.cut(rng, now_ms);
        }
    }

    /// Nothing goes wrong any more.
    pub(super) fn mend(&mut self, now_ms: u64) {
        self.down_until = self.down_until.min(now_ms);
        for wire in &self.wires {
            let link = &mut wire.borrow_mut().link;
            link.heal(now_ms);
            link.slow_ms = link.slow_ms.min(30);
        }
    }
}
