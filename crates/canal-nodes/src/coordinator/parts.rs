//! What every phase can do about the part of one node: ask about it, release it, withdraw it.

use super::node::{Hold, Node};
use super::turn::Turn;
use super::{Coordinator, Phase};
use crate::{Effect, Millis, Outcome};

impl Coordinator {
    /// Whether the request waits at a node.
    #[must_use]
    pub fn waits(&self) -> bool {
        let waits = |at: &usize| matches!(self.nodes[*at].hold, Hold::Queued);
        matches!(self.phase, Phase::Collecting(_)) && self.members.iter().any(waits)
    }

    /// Whether one node has granted its part while the request waits at another. A request without
    /// any grant and outside any other run blocks only those behind it.
    #[must_use]
    pub fn holds_while_it_waits(&self) -> bool {
        self.waits() && self.nodes.iter().any(Node::is_held)
    }

    /// Whether a node will not grant the request until a person changes something.
    pub(super) fn never_grants(&self, at: usize) -> bool {
        self.nodes[at].unfit.is_some() || self.nodes[at].link.is_permanently_away()
    }

    /// Whether a node answers, or may answer soon, and may grant its part.
    pub(super) fn may_answer(&self, turn: &mut Turn, at: usize) -> bool {
        let node = &self.nodes[at];
        let waits = matches!(node.hold, Hold::Queued);
        let is_ready = node.unfit.is_none() && (waits || turn.is_past(node.grants_from));
        is_ready && node.link.may_answer(turn, self.timing.silence_ms)
    }

    /// Releases the lease that a node may hold, if the node is in reach.
    pub(super) fn release(&mut self, turn: &mut Turn, at: usize) {
        let node = &mut self.nodes[at];
        node.sent = None;
        node.renewing = None;
        node.hold = Hold::Unknown;
        if node.link.is_open() {
            node.hold = Hold::Releasing { since: turn.now };
            turn.call(Effect::Release { node: at, lease: node.lease }, self.timing.silence_ms);
        }
    }

    /// Withdraws a request or a collecting grant.
    pub(super) fn cancel(&mut self, turn: &mut Turn, at: usize) {
        let node = &mut self.nodes[at];
        node.hold = Hold::Nothing;
        node.link.close(turn.now);
        turn.carry_out(Effect::Cancel { node: at });
    }

    /// Reconnects to a node that has not answered a call since `since`, if that was long ago.
    /// Returns whether it was.
    pub(super) fn suspect(
        &mut self,
        turn: &mut Turn,
        at: usize,
        since: Millis,
        silence_ms: Millis,
    ) -> bool {
        let is_silent = turn.is_silent(since, silence_ms);
        if is_silent {
            self.nodes[at].suspect(turn.now, since);
        }
        is_silent
    }

    /// Begins to release everything.
    pub(super) fn end(&mut self, turn: &Turn, outcome: Outcome) {
        self.phase = Phase::Ending { outcome, until: turn.now + self.timing.silence_ms };
    }
}
