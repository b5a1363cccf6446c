//! Releases everything at the end.

use super::node::Hold;
use super::turn::Turn;
use super::{Coordinator, Phase};
use crate::{Effect, Millis, Outcome};

impl Coordinator {
    /// Releases everything, the last node first: requests that begin now ask the first node first,
    /// and by then find the others free.
    pub(super) fn finish(&mut self, turn: &mut Turn, outcome: Outcome, until: Millis) -> bool {
        let mut left = Vec::new();
        for at in (0..self.nodes.len()).rev() {
            self.give_back_at(turn, at);
            let node = &self.nodes[at];
            if node.hold != Hold::Nothing {
                left.push(at);
            }
        }
        left.reverse();
        let is_hopeless = |at: &usize| self.nodes[*at].link.is_permanently_away();
        let is_over = left.iter().all(is_hopeless) || turn.is_past(until);
        if is_over {
            let outcome = match outcome {
                Outcome::GivenBack { .. } => Outcome::GivenBack { left },
                other => other,
            };
            self.phase = Phase::Over;
            turn.carry_out(Effect::End(outcome));
        }
        is_over
    }

    fn give_back_at(&mut self, turn: &mut Turn, at: usize) {
        let timing = self.timing_of(at);
        let longest_ms = timing.ttl_ms + timing.margin_ms;
        let node = &self.nodes[at];
        match node.hold {
            Hold::Asked { .. } | Hold::Queued | Hold::Collecting { .. } => self.cancel(turn, at),
            Hold::Firm | Hold::Unknown | Hold::Confirming { .. } => {
                let has_ended = |sent: Millis| turn.now >= sent.saturating_add(longest_ms);
                if node.sent.is_some_and(has_ended) {
                    self.nodes[at].gone();
                } else if node.link.is_open() {
                    self.release(turn, at);
                }
            }
            Hold::Nothing | Hold::Releasing { .. } => {}
        }
    }
}
