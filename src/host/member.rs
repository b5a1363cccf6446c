//! The state machine.

use std::collections::VecDeque;

use super::{Deadlines, Event, Health, Now, Settings, Standing, Ticket};
use crate::core::{Change, HostId, Rules, Snapshot, UnixMillis};
use crate::log::engine::{Answer, Call, Identity, Position};

/// One host's part in the log of many.
#[derive(Debug)]
pub struct Member {
    #[expect(dead_code, reason = "being filled")]
    settings: Settings,
    #[expect(dead_code, reason = "being filled")]
    identity: Identity,
    #[expect(dead_code, reason = "being filled")]
    nonce: u128,
    #[expect(dead_code, reason = "being filled")]
    rules: Rules,
    calls: VecDeque<Call>,
    events: VecDeque<Event>,
    tickets: u64,
}

impl Member {
    /// A member that has not been started. `nonce` is random.
    #[must_use]
    pub fn new(settings: Settings, identity: Identity, nonce: u128, rules: Rules) -> Self {
        let (calls, events) = Default::default();
        Self { settings, identity, nonce, rules, calls, events, tickets: 0 }
    }

    /// Begins to join. Call it once.
    pub fn start(&mut self, now: Now) {
        let _ = now;
    }

    /// Proposes a change. It comes back as an [`Event::Entry`] with this ticket, or the ticket as
    /// [`Event::Absorbed`] or [`Event::Dropped`]; the latter at once while we are no member.
    pub fn propose(&mut self, change: Change, at: UnixMillis) -> Ticket {
        let _ = (change, at);
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// What is to be asked of the engine now.
    pub fn take_calls(&mut self) -> Vec<Call> {
        self.calls.drain(..).collect()
    }

    /// Takes in an answer of the engine.
    pub fn answer(&mut self, now: Now, answer: Answer) {
        let _ = (now, answer);
    }

    /// Takes in that time has passed.
    pub fn tick(&mut self, now: Now) {
        let _ = now;
    }

    /// When [`Member::tick`] is to be called at the latest, in milliseconds of CLOCK_BOOTTIME.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        None
    }

    /// The next thing for the driver to do.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The answer to [`Event::Clear`]: no command of an earlier incarnation lives.
    pub fn cleared(&mut self, now: Now) {
        let _ = now;
    }

    /// The answer to [`Event::SnapshotWanted`]: the table as it was at that event.
    pub fn store(&mut self, snapshot: &Snapshot) {
        let _ = snapshot;
    }

    /// Until when commands of ours may run. A grant may be told only before `term_at`.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        Deadlines::default()
    }

    /// Our incarnation, while we are a member.
    #[must_use]
    pub fn host(&self) -> Option<HostId> {
        None
    }

    /// How we stand to the engine.
    #[must_use]
    pub fn health(&self) -> Health {
        Health {
            standing: Standing::Idle,
            host: None,
            away: None,
            renewed_ms: None,
            position: Position(0),
            head: Position(0),
            hosts: Vec::new(),
        }
    }
}
