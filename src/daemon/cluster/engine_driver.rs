//! The log of many hosts, as the ledger of one of them sees it.
//!
//! Invariant: what is told here is told in the order in which the member says it, one thing at a
//! time, so that each is carried out on the table that the one before it left.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use crate::core::{Change, Snapshot, Table, Token, UnixMillis};
use crate::host::{Deadlines, Event, Health, Known, Mark, Member, Memory, Now, Ticket};
use crate::log::engine::{Answer, Engine};
use crate::sys::clock;

/// The log of many hosts: our part in it, and the engine that keeps it.
#[derive(Debug)]
pub(crate) struct EngineDriver {
    member: Member,
    engine: Box<dyn Engine>,
    /// What the engine said and was not taken in yet.
    answers: VecDeque<Answer>,
}

/// The time, as members are told it.
fn now() -> Now {
    Now { boot_ms: clock::boottime_ms(), unix: UnixMillis(clock::unix_ms()) }
}

impl EngineDriver {
    /// Begins to take part.
    pub(crate) fn new(mut member: Member, engine: Box<dyn Engine>) -> Self {
        member.start(now());
        Self { member, engine, answers: VecDeque::new() }
    }

    /// Ready when there is something to take in.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(answer) = self.engine.poll(context) {
            self.answers.push_back(answer);
        }
        if self.answers.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Takes in that time has passed and what the engine has said meanwhile.
    pub(crate) fn begin_turn(&mut self) {
        // Whoever sleeps asks again, and says whom to wake.
        let _ = self.poll(&mut Context::from_waker(Waker::noop()));
        self.member.tick(now());
    }

    /// The next thing to carry out.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.member.next_event() {
                return Some(event);
            }
            let answer = self.answers.pop_front()?;
            self.member.answer(now(), answer);
        }
    }

    /// Asks the engine what is to be asked.
    pub(crate) fn end_turn(&mut self) {
        for call in self.member.take_calls() {
            self.engine.call(call);
        }
    }

    pub(crate) fn propose(&mut self, change: Change) -> Ticket {
        self.member.propose(change, now().unix)
    }

    /// Ends our membership in good order; whether that is on its way.
    pub(crate) fn leave(&mut self) -> bool {
        self.member.leave(now())
    }

    /// Whatever an earlier incarnation left is dead.
    pub(crate) fn cleared(&mut self) {
        self.member.cleared(now());
    }

    pub(crate) fn store(&mut self, snapshot: &Snapshot) {
        self.member.store(snapshot);
    }

    /// How far the log was read.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.member.mark()
    }

    /// Whether what had been read at a mark is part of what is read now.
    pub(crate) fn knows(&self, mark: Option<Mark>) -> Known {
        mark.map_or(Known::TooOld, |mark| self.member.knows(mark))
    }

    /// Takes up what is known of an earlier daemon.
    pub(crate) fn remember(&mut self, memory: Memory) {
        self.member.remember(memory);
    }

    /// Which history the log has, once that is known.
    pub(crate) fn epoch(&self) -> Option<u128> {
        self.member.memory().epoch
    }

    /// A client here is told this token.
    pub(crate) fn tell(&mut self, token: Token) {
        self.member.tell(token);
    }

    /// The table may have begun or ended a recovery.
    pub(crate) fn recovers(&mut self, table: &Table) {
        self.member.recovers(table.recovery(), table.longest_ttl_ms());
    }

    /// When a recovery has waited for the longest TTL, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn recovered_at(&self) -> Option<u64> {
        self.member.recovered_at()
    }

    /// Whether everything was read that the log had when the engine could be reached again.
    pub(crate) fn is_current(&self) -> bool {
        self.member.is_current()
    }

    pub(crate) fn deadlines(&self) -> Deadlines {
        self.member.deadlines()
    }

    pub(crate) fn health(&self) -> Health {
        self.member.health()
    }

    /// When there is something to do at the latest, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.member.next_due()
    }
}
