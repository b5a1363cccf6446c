//! The simulated engine fulfils the contract of every engine, in both flavours.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::engine::{Answer, Call, Engine};
use crate::engine_contract::{Log, contract};
use crate::sim::engine::{Flavour, Server};

/// An engine that clients on several threads share.
#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    server: Server,
    clients: usize,
    /// The clients that wait for an answer.
    wakers: BTreeMap<usize, Waker>,
}

/// The engine as one client sees it.
#[derive(Debug)]
struct Client {
    shared: Shared,
    number: usize,
    answers: VecDeque<Answer>,
}

impl Shared {
    fn new(flavour: Flavour) -> Self {
        let mut server = Server::new(flavour);
        server.live_anew(1, false);
        Self(Arc::new(Mutex::new(State { server, clients: 0, wakers: BTreeMap::new() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl Log for Shared {
    fn engine(&self, _label: &str) -> Box<dyn Engine + Send> {
        let mut state = self.state();
        state.clients += 1;
        let number = state.clients;
        Box::new(Client { shared: self.clone(), number, answers: VecDeque::new() })
    }
}

impl Engine for Client {
    fn call(&mut self, call: Call) {
        let mut state = self.shared.state();
        self.answers.extend(state.server.calls(self.number, 0, 1, call));
        for waker in std::mem::take(&mut state.wakers).into_values() {
            waker.wake();
        }
    }

    fn lets_rest(&self) -> bool {
        self.shared.state().server.lets_rest()
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.shared.state();
        let answer = self.answers.pop_front().or_else(|| state.server.push(self.number));
        match answer {
            Some(answer) => Poll::Ready(answer),
            None => {
                state.wakers.insert(self.number, context.waker().clone());
                Poll::Pending
            }
        }
    }
}

mod counting {
    use super::*;

    fn log() -> Option<Shared> {
        Some(Shared::new(Flavour::Counting))
    }

    contract!(log);
}

mod watching {
    use super::*;

    fn log() -> Option<Shared> {
        Some(Shared::new(Flavour::Watching))
    }

    contract!(log);
}
