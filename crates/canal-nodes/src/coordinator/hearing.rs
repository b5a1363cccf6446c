//! Updates the state of a node from each input.

use super::node::{Hold, Trouble, Turn};
use super::{Coordinator, Phase};
use crate::{Change, Effect, Input, Millis, Outcome, Refusal, Require};
use canal_core::Token;

/// How many times a node may fail to confirm its own grant before it counts as one that never will.
/// Without a limit, the coordinator would ask it again as fast as the network allows. Once the
/// command runs, there is none.
const UNCONFIRMED_MAX: u32 = 8;

/// How many tokens to skip when a node has already used the one that it should confirm. A busy node
/// issues thousands of tokens a second.
const TOKENS_SKIPPED: u64 = 1 << 10;

/// How many times that number doubles at most: by then it equals the tokens that the clock yields
/// in a second.
const TOKENS_SKIPPED_DOUBLED_MAX: u32 = 10;

impl Coordinator {
    pub(super) fn hear(&mut self, input: Input, turn: &mut Turn) {
        match input {
            Input::Reached { node } => self.nodes[node].reached(),
            Input::NotYet { node, left_ms } => {
                self.nodes[node].reached();
                self.nodes[node].grants_from = turn.now.saturating_add(left_ms);
            }
            Input::Away { node, permanent, why } => {
                let runs = matches!(self.phase, Phase::Running);
                let longest_ms = runs.then_some(self.timing.renewal_silence_ms);
                let trouble = Trouble { is_permanent: permanent, why };
                self.nodes[node].away(turn.now, trouble, longest_ms);
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
                self.hear_unconfirmed(node, "the grant ended before it could be confirmed", turn);
            }
            Input::TokenTaken { node, least } => {
                let why = "another lock there already had the token";
                if self.hear_unconfirmed(node, why, turn) {
                    self.skip_tokens(least);
                    self.release_spare(node, turn);
                }
            }
            Input::TokenRefused { node, why } => {
                if self.hear_unconfirmed(node, "", turn) {
                    self.nodes[node].unfit = Some(why);
                    self.release_spare(node, turn);
                }
            }
            Input::Renewed { node, sent, ttl_ms } => {
                if matches!(self.nodes[node].hold, Hold::Firm | Hold::Unknown) {
                    self.nodes[node].ttl_ms = ttl_ms;
                    self.hear_firm(node, sent, turn.now);
                }
            }
            Input::Gone { node } => self.hear_gone(node, turn),
            Input::SpareTaken { node } => {
                let ask_at = self.ask_spare_at(turn.now);
                let node = &mut self.nodes[node];
                if matches!(node.hold, Hold::Collecting { .. }) {
                    node.gone();
                    node.ask_at = ask_at;
                }
            }
            Input::Surrender => self.surrender(turn),
            Input::Deadlock { why } => self.give_up(turn, why),
            Input::Stop => self.stop(turn),
            Input::Tick => {}
        }
    }

    /// Records that the lease of a node is firm, and lives for at least a TTL from `sent`.
    fn hear_firm(&mut self, node: usize, sent: Millis, now: Millis) {
        #[cfg(test)]
        let sent = match crate::sim::is_broken(crate::sim::Rule::CountsFromSending) {
            true => now,
            false => sent,
        };
        debug_assert!(sent <= now, "an answer to a call that was not sent yet");
        let renewal_ms = self.timing_of(node).renewal_ms;
        let node = &mut self.nodes[node];
        let sent = node.sent.map_or(sent, |earlier| earlier.max(sent));
        node.hold = Hold::Firm;
        node.sent = Some(sent);
        node.renewing = None;
        node.renew_at = sent.saturating_add(renewal_ms);
    }

    /// Records that a node reported that it did not confirm its own grant. A request stops asking a
    /// node that does so repeatedly. While the command runs, it asks for a spare again after a
    /// while, until the command ends. Returns whether the node was asked to confirm.
    fn hear_unconfirmed(&mut self, at: usize, why: &str, turn: &Turn) -> bool {
        let runs = matches!(self.phase, Phase::Running);
        let ask_at = self.ask_spare_at(turn.now);
        let node = &mut self.nodes[at];
        if !matches!(node.hold, Hold::Confirming { .. }) {
            return false;
        }
        node.hold = Hold::Unknown;
        node.ask_at = ask_at;
        if !runs {
            node.unconfirmed += 1;
            if node.unconfirmed >= UNCONFIRMED_MAX {
                let times = node.unconfirmed;
                node.unfit = Some(format!(
                    "it granted the lock {times} times and never confirmed it: {why}"
                ));
            }
        }
        true
    }

    /// Moves the next token so far beyond those of a node that the node cannot reach it before it
    /// is asked to confirm. The distance doubles each time.
    fn skip_tokens(&mut self, least: Token) {
        let beyond = TOKENS_SKIPPED << self.tokens_taken.min(TOKENS_SKIPPED_DOUBLED_MAX);
        self.tokens_taken += 1;
        self.least_token = self.least_token.max(Token(least.0.saturating_add(beyond)));
    }

    /// Releases a spare that a node granted and cannot confirm; otherwise it would stay collecting.
    fn release_spare(&mut self, at: usize, turn: &mut Turn) {
        if matches!(self.phase, Phase::Running) {
            self.release(turn, at);
        }
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
            // This is a late answer about an earlier lease.
            _ => {}
        }
    }

    fn hear_refusal(&mut self, at: usize, refusal: Refusal, why: String, turn: &mut Turn) {
        // A command that is being killed still runs until it is dead.
        let runs = matches!(self.phase, Phase::Running | Phase::Lost);
        let ask_at = self.ask_spare_at(turn.now);
        let is_its_turn = self.is_its_turn(at);
        let node = &mut self.nodes[at];
        if !matches!(node.hold, Hold::Asked { .. } | Hold::Queued) {
            return;
        }
        let is_spare = node.is_spare();
        node.gone();
        match refusal {
            Refusal::NotYet { left_ms } => node.grants_from = turn.now.saturating_add(left_ms),
            Refusal::Unfit => node.unfit = Some(why),
            // This was a spare: the command runs without it.
            Refusal::OtherList if runs => {
                node.unfit = Some(why.clone());
                turn.carry_out(Effect::Say(Change::OtherList { node: at, why }));
            }
            Refusal::Invalid if runs => node.unfit = Some(why),
            _ if runs => node.ask_at = ask_at,
            Refusal::Invalid | Refusal::OtherList => {
                self.end(turn, Outcome::Failed { nodes: vec![(at, why)] });
            }
            _ if self.plan.require == Require::Any => node.refused = Some((refusal, why)),
            _ if is_spare || !is_its_turn => node.ask_at = turn.now + self.timing.silence_ms,
            _ => {
                let outcome = self.refused(turn.now, Some(at), refusal, why);
                self.end(turn, outcome);
            }
        }
    }

    /// When to ask a node again for a spare that it did not grant, or took back. A request whose
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
            // It queues again behind the others, so its old place must be gone first.
            for node in &mut self.nodes {
                if node.asked.take().is_some() {
                    node.hold = Hold::Unknown;
                }
            }
        }
    }

    fn give_up(&mut self, turn: &mut Turn, why: String) {
        if self.waits() {
            let outcome = self.refused(turn.now, None, Refusal::Deadlock, why);
            self.end(turn, outcome);
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
