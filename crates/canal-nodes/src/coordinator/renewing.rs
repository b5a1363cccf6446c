//! Renews or releases a lease of which only the handle is known.
//!
//! The time of its last renewal is unknown. So no part counts before its node has answered.

use super::node::Hold;
use super::turn::Turn;
use super::{Coordinator, Phase};
use crate::{Effect, Millis, Outcome};

/// The factor by which a node may be silent longer than usual if nothing can be done without it.
const PATIENCE: Millis = 3;

impl Coordinator {
    /// How long to try to reach nodes without which nothing can be done.
    pub(super) fn patience_ms(&self) -> Millis {
        PATIENCE * self.timing.silence_ms
    }

    /// Renews each part once, and keeps renewing when enough nodes have answered.
    pub(super) fn renew_parts(&mut self, turn: &mut Turn) -> bool {
        let members = self.members.iter().copied();
        let gone: Vec<usize> = members.filter(|at| self.nodes[*at].hold == Hold::Nothing).collect();
        if self.members.len() - gone.len() < self.need {
            self.end(turn, Outcome::Lost { nodes: gone });
            return true;
        }
        for at in self.members.clone() {
            self.keep_lease(turn, at);
        }
        let is_enough = self.sure_nodes().count() >= self.need;
        let patience_ms = if is_enough { self.timing.silence_ms } else { self.patience_ms() };
        let is_over = turn.is_past(self.begun.unwrap_or(turn.now).saturating_add(patience_ms));
        let owed: Vec<usize> =
            self.members.iter().copied().filter(|at| self.owes_renewal(*at)).collect();
        let may_answer = |at: &usize| !self.nodes[*at].link.is_permanently_away();
        if !is_over && owed.iter().any(may_answer) {
            return false;
        }
        if !is_enough {
            let nodes = owed.into_iter().map(|at| (at, self.nodes[at].obstacle())).collect();
            self.phase = Phase::Over;
            turn.carry_out(Effect::End(Outcome::Failed { nodes }));
            return true;
        }
        // If this process was stopped meanwhile, the answers are too old, and the parts are renewed
        // again.
        let Some(deadline) = self.deadline(turn.now).filter(|it| turn.now < it.term_at) else {
            return false;
        };
        self.published = Some(deadline.kill_at);
        self.phase = Phase::Running;
        let nodes = self.sure_nodes().collect();
        turn.carry_out(Effect::Start { token: self.token, nodes, deadline });
        true
    }

    /// Whether a node has yet to answer.
    fn owes_renewal(&self, at: usize) -> bool {
        self.nodes[at].hold != Hold::Nothing && self.nodes[at].sent.is_none()
    }

    /// Whether a node that the start did not need may soon hold its part as well.
    #[must_use]
    pub fn awaits_spares(&self, now: Millis) -> bool {
        let may_join = |at: &usize| {
            let node = &self.nodes[*at];
            match node.hold {
                Hold::Asked { .. } | Hold::Collecting { .. } | Hold::Confirming { .. } => true,
                Hold::Nothing => {
                    let silence_ms = self.timing.silence_ms;
                    let until = node.link.silent_since().map(|since| since + silence_ms);
                    let is_ready = node.ask_at.max(node.grants_from) <= now;
                    is_ready && !self.never_grants(*at) && until.is_none_or(|until| now < until)
                }
                _ => false,
            }
        };
        let runs = matches!(self.phase, Phase::Running);
        runs && self.plan.require.has_spares() && self.members.iter().any(may_join)
    }
}
