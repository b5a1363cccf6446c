//! The engine's log, in the form that the ledger of one host needs.
//!
//! Invariant: events are returned one at a time, in the order in which the member produces them.
//! The daemon carries out each event on the table that the previous event left.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use crate::host::{Deadlines, Event, Member, Now, Ticket};
use canal_core::{Change, Table, UnixMillis};
use canal_log::engine::{Answer, Engine};
use canal_sys::clock;

/// This host's member state machine, and the engine that keeps the log.
#[derive(Debug)]
pub(crate) struct EngineDriver {
    /// What needs neither the time nor the engine is asked of the member itself.
    pub member: Member,
    engine: Box<dyn Engine>,
    /// The engine's answers that the member has not processed yet.
    answers: VecDeque<Answer>,
}

/// The current time in the form that the member expects.
fn now() -> Now {
    Now { boot_ms: clock::boottime_ms(), unix: UnixMillis(clock::unix_ms()) }
}

impl EngineDriver {
    pub(crate) fn new(member: Member, engine: Box<dyn Engine>) -> Self {
        Self { member, engine, answers: VecDeque::new() }
    }

    /// Starts the member, which registers under the number of this place's directory.
    pub(crate) fn start(&mut self, dir_number: u64) {
        self.member.remember_dir(dir_number);
        self.member.start(now());
    }

    /// Returns `Ready` when there are answers to process.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(answer) = self.engine.poll(context) {
            self.answers.push_back(answer);
        }
        if self.answers.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Gives the member the current time, and collects the engine's answers.
    pub(crate) fn begin_turn(&mut self) {
        // The event loop polls again with its own waker before it sleeps.
        let _ = self.poll(&mut Context::from_waker(Waker::noop()));
        self.member.tick(now());
    }

    /// The next event to carry out.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.member.next_event() {
                return Some(event);
            }
            let answer = self.answers.pop_front()?;
            self.member.answer(now(), answer);
        }
    }

    /// Passes the member's calls to the engine. `is_needed`: something on this host depends on the
    /// batches of other hosts.
    pub(crate) fn end_turn(&mut self, is_needed: bool) {
        self.member.attend(now(), is_needed || !self.engine.lets_rest());
        for call in self.member.take_calls() {
            self.engine.call(call);
        }
        let Deadlines { term_at, kill_at } = self.member.deadlines();
        self.engine.renew_by([term_at, kill_at]);
    }

    /// Reads the log for clients that call while this host rests.
    pub(crate) fn read_up(&mut self) {
        self.member.read_up(now());
    }

    pub(crate) fn propose(&mut self, change: Change) -> Ticket {
        self.member.propose(change, now().unix)
    }

    /// Ends this host's membership in an orderly way. Returns whether the withdrawal is under way.
    pub(crate) fn leave(&mut self) -> bool {
        self.member.leave(now())
    }

    /// Reports that all processes of earlier incarnations are dead.
    pub(crate) fn cleared(&mut self) {
        self.member.cleared(now());
    }

    /// Reports that the table may have started or ended a recovery.
    pub(crate) fn recovers(&mut self, table: &Table) {
        self.member.recovers(table.recovery(), table.longest_ttl_ms());
    }
}
