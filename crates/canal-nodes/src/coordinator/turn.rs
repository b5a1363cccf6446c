//! One call of the coordinator: its time and its effects.

use crate::{Effect, Millis};

/// One call of the coordinator.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) now: Millis,
    /// No node counts as silent before this time: this process was stopped, and is about to read
    /// the messages that arrived meanwhile.
    patient_until: Millis,
    effects: Vec<Effect>,
    /// The earliest time for which something waits.
    wake_at: Option<Millis>,
}

impl Turn {
    pub(super) fn new(now: Millis, patient_until: Millis) -> Self {
        Self { now, patient_until, effects: Vec::new(), wake_at: None }
    }

    /// Whether a call has been unanswered for too long.
    pub(super) fn is_silent(&mut self, since: Millis, silence_ms: Millis) -> bool {
        let until = since.saturating_add(silence_ms).max(self.patient_until);
        self.is_past(until)
    }

    /// Whether a time has come. If not, the coordinator is called again at that time.
    pub(super) fn is_past(&mut self, at: Millis) -> bool {
        if self.now >= at {
            return true;
        }
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
        false
    }

    pub(super) fn carry_out(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Calls a node. If it does not answer within `silence_ms`, the coordinator is called again.
    pub(super) fn call(&mut self, effect: Effect, silence_ms: Millis) {
        self.is_past(self.now.saturating_add(silence_ms));
        self.carry_out(effect);
    }

    /// When to call again.
    pub(super) fn wake_at(&self) -> Option<Millis> {
        self.wake_at.filter(|at| *at < Millis::MAX)
    }

    pub(super) fn into_effects(self) -> Vec<Effect> {
        self.effects
    }
}
