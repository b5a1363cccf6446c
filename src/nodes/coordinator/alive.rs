//! Chooses the nodes that count when only those that answer do (`all-alive`, `majority-alive`).

use super::node::Hold;
use super::turn::Turn;
use super::{Coordinator, Phase, Round};
use crate::nodes::Millis;

impl Coordinator {
    /// Waits until each node has answered or its time is over. The nodes that answered become the
    /// members.
    pub(super) fn count_the_alive(&mut self, turn: &mut Turn, until: Millis) -> bool {
        if let Some(outcome) = self.time_over(turn) {
            self.end(turn, outcome);
            return true;
        }
        let is_open = |at: &usize| self.nodes[*at].link.is_open();
        let is_settled = |at: usize| is_open(&at) || self.never_grants(at);
        let all_settled = (0..self.nodes.len()).all(is_settled);
        let open = (0..self.nodes.len()).filter(is_open);
        let members: Vec<usize> = open.filter(|at| self.may_answer(turn, *at)).collect();
        if !all_settled && !turn.is_past(until) {
            return false;
        }
        if members.is_empty() {
            let is_hopeless = (0..self.nodes.len()).all(|at| self.never_grants(at));
            if is_hopeless || self.plan.wait_ms == Some(0) {
                let outcome = self.failed(turn);
                self.end(turn, outcome);
                return true;
            }
            return false;
        }
        self.count_only(members);
        self.phase = Phase::Collecting(Round { at: 0, since: turn.now });
        true
    }

    /// Drops the members that have become silent. Returns whether another phase has begun: if so,
    /// the request releases everything, because it now needs fewer grants from other nodes.
    pub(super) fn drop_the_silent(&mut self, turn: &mut Turn) -> bool {
        let mut members = self.members.clone();
        members.retain(|at| self.may_answer(turn, *at));
        if members.len() == self.members.len() {
            return false;
        }
        let lost = self.members.iter().copied().find(|at| !members.contains(at));
        self.ask_anew(turn, lost);
        if members.is_empty() {
            self.members = (0..self.nodes.len()).collect();
            self.phase = Phase::Counting { until: turn.now };
        } else {
            self.count_only(members);
        }
        true
    }

    fn count_only(&mut self, members: Vec<usize>) {
        self.need = self.plan.require.least(members.len());
        self.members = members;
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
}
