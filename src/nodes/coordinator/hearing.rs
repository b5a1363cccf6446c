//! What each input says about a node.

use super::link::Trouble;
use super::node::Hold;
use super::turn::Turn;
use super::{Coordinator, Phase};
use crate::nodes::{Change, Effect, Input, Millis, Outcome, Refusal, Require};

impl Coordinator {
    pub(super) fn hear(&mut self, input: Input, turn: &mut Turn) {
        match input {
            Input::Reached { node } => self.nodes[node].reached(),
            Input::Away { node, permanent, why } => {
                self.hear_away(node, Trouble { is_permanent: permanent, why }, turn.now);
            }
            Input::Queued { node } => {
                let node = &mut self.nodes[node];
                if matches!(node.hold, Hold::Asked { .. }) {
                    node.hold = Hold::Queued;
                }
            }
            Input::Granted { node, token } => {
                let node = &mut self.nodes[node];
                if matches!(node.hold, Hold::Asked { .. } | Hold::Queued) {
                    node.hold = Hold::Collecting { token };
                }
            }
            Input::Refused { node, refusal, why } => self.hear_refusal(node, refusal, why, turn),
            Input::Confirmed { node, sent } => {
                if matches!(self.nodes[node].hold, Hold::Confirming { .. }) {
                    self.hear_firm(node, sent, turn.now);
                }
            }
            Input::ConfirmFailed { node } => {
                let ask_at = self.ask_spare_at(turn.now);
                let node = &mut self.nodes[node];
                if matches!(node.hold, Hold::Confirming { .. }) {
                    // The grant may be there and refuse this token.
                    node.hold = Hold::Unknown;
                    node.ask_at = ask_at;
                }
            }
            Input::Renewed { node, sent } => {
                if matches!(self.nodes[node].hold, Hold::Firm | Hold::Unknown) {
                    self.hear_firm(node, sent, turn.now);
                }
            }
            Input::Gone { node } => self.hear_gone(node, turn),
            Input::SpareTaken { node } => {
                let ask_at = self.ask_spare_at(turn.now);
                let node = &mut self.nodes[node];
                if matches!(node.hold, Hold::Collecting { .. }) {
                    node.hold = Hold::Nothing;
                    node.ask_at = ask_at;
                }
            }
            Input::Surrender => self.surrender(turn),
            Input::Stop => self.stop(turn),
            Input::Tick => {}
        }
    }

    fn hear_away(&mut self, node: usize, trouble: Trouble, now: Millis) {
        let runs = matches!(self.phase, Phase::Running);
        let longest_ms = runs.then_some(self.timing.renewal_silence_ms);
        let is_local = self.is_local(node);
        self.nodes[node].away(now, trouble, longest_ms, is_local);
    }

    /// The lease of a node is firm, and lives for a TTL from `sent` at least.
    fn hear_firm(&mut self, node: usize, sent: Millis, now: Millis) {
        #[cfg(test)]
        let sent = match crate::nodes::sim::is_broken(crate::nodes::sim::Rule::CountsFromSending) {
            true => now,
            false => sent,
        };
        debug_assert!(sent <= now, "an answer to a call that was not sent yet");
        let renewal_ms = self.timing.renewal_ms;
        let node = &mut self.nodes[node];
        let sent = node.sent.map_or(sent, |earlier| earlier.max(sent));
        node.hold = Hold::Firm;
        node.sent = Some(sent);
        node.renewing = None;
        node.renew_at = sent.saturating_add(renewal_ms);
    }

    fn hear_gone(&mut self, at: usize, turn: &mut Turn) {
        let runs = matches!(self.phase, Phase::Running);
        let node = &mut self.nodes[at];
        match node.hold {
            Hold::Releasing { .. } => node.gone(),
            Hold::Firm | Hold::Unknown => {
                let was_sure = node.sent.is_some();
                node.gone();
                if runs && was_sure {
                    let (held, need) = (self.sure_nodes().count(), self.need);
                    turn.carry_out(Effect::Say(Change::Lost { node: at, held, need }));
                }
            }
            // A late answer about an earlier lease.
            _ => {}
        }
    }

    fn hear_refusal(&mut self, at: usize, refusal: Refusal, why: String, turn: &mut Turn) {
        let runs = matches!(self.phase, Phase::Running);
        let ask_at = self.ask_spare_at(turn.now);
        let node = &mut self.nodes[at];
        if !matches!(node.hold, Hold::Asked { .. } | Hold::Queued) {
            return;
        }
        node.hold = Hold::Nothing;
        match refusal {
            Refusal::NotYet { left_ms } => {
                let until = turn.now.saturating_add(left_ms);
                node.grants_from = until;
                turn.carry_out(Effect::Say(Change::NotYet { node: at, until }));
            }
            Refusal::Unfit => node.unfit = Some(why),
            // A spare: the command runs without it.
            Refusal::Invalid if runs => node.unfit = Some(why),
            _ if runs => node.ask_at = ask_at,
            Refusal::Invalid => self.end(turn, Outcome::Failed { nodes: vec![(at, why)] }),
            _ if self.plan.require == Require::Any => node.refused = Some((refusal, why)),
            _ => self.end(turn, Outcome::Refused { node: Some(at), refusal, why }),
        }
    }

    /// When a node is asked again for a spare that it did not grant, or took back. A request whose
    /// command does not run asks again at once.
    fn ask_spare_at(&self, now: Millis) -> Millis {
        match self.phase {
            Phase::Running => now.saturating_add(self.timing.renewal_ms),
            _ => now,
        }
    }

    fn surrender(&mut self, turn: &mut Turn) {
        if matches!(self.phase, Phase::Collecting(_) | Phase::Confirming { .. }) {
            self.ask_anew(turn, None);
        }
    }

    fn stop(&mut self, turn: &mut Turn) {
        let outcome = match self.phase {
            Phase::Lost => Outcome::Lost { nodes: self.lost_nodes(turn.now) },
            Phase::Ending { .. } | Phase::Over => return,
            _ => Outcome::GivenBack { left: Vec::new() },
        };
        self.end(turn, outcome);
    }
}
