//! Updates the state of a node from each input.

use super::node_state::{Hold, SILENCE_MS, Turn};
use super::{Coordinator, Phase};
use crate::{Change, Effect, Event, Input, Millis, Outcome, Refusal, Require};
use canal_core::Token;
use canal_protocol::NodeFailure;

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
            Input::Node(at, event) => self.hear_node(at, event, turn),
            Input::Surrender => {
                if matches!(self.phase, Phase::Collecting(_) | Phase::Confirming { .. }) {
                    self.ask_anew(turn, None);
                    // It queues again behind the others, so its old place must be gone first.
                    for node in self.nodes.iter_mut().filter(|node| node.asked.is_some()) {
                        (node.asked, node.hold) = (None, Hold::Unknown);
                    }
                }
            }
            Input::Deadlock(why) if self.waits() => {
                let why = NodeFailure::passing(why);
                let outcome = self.refused(turn.now, None, Refusal::Deadlock, why);
                self.end(turn, outcome);
            }
            Input::Stop => {
                let outcome = match self.phase {
                    // The members that no longer certainly hold the lock.
                    Phase::Lost => {
                        let is_unsure = |at: &usize| self.sure_until(*at) <= turn.now;
                        Outcome::Lost(self.members.iter().copied().filter(is_unsure).collect())
                    }
                    Phase::Ending { .. } | Phase::Over => return,
                    _ => Outcome::GivenBack(Vec::new()),
                };
                self.end(turn, outcome);
            }
            Input::Deadlock(_) | Input::Tick => {}
        }
    }

    fn hear_node(&mut self, at: usize, event: Event, turn: &mut Turn) {
        let node = &mut self.nodes[at];
        match event {
            Event::Reached(grants_in_ms) => {
                node.reached();
                if let Some(left_ms) = grants_in_ms {
                    node.grants_from = turn.now.saturating_add(left_ms);
                }
            }
            Event::Away(failure) => {
                let runs = matches!(self.phase, Phase::Running);
                node.away(turn.now, failure, runs.then_some(self.timing.renewal_silence_ms));
            }
            Event::Queued if matches!(node.hold, Hold::Asked { .. }) => node.hold = Hold::Queued,
            Event::Granted(token) if matches!(node.hold, Hold::Asked { .. } | Hold::Queued) => {
                node.hold = Hold::Collecting { token };
            }
            Event::Refused(refusal, why) => self.hear_refusal(at, refusal, why, turn),
            Event::Confirmed(sent) if matches!(node.hold, Hold::Confirming { .. }) => {
                self.hear_firm(at, sent, turn.now);
            }
            Event::ConfirmFailed => {
                self.hear_unconfirmed(at, "the grant ended before it could be confirmed", turn);
            }
            Event::TokenTaken(least) => {
                if self.hear_unconfirmed(at, "another lock there already had the token", turn) {
                    // So far beyond the node's tokens that it cannot reach the next one before it
                    // is asked to confirm. The distance doubles each time.
                    let doubled = self.tokens_taken.min(TOKENS_SKIPPED_DOUBLED_MAX);
                    let least = Token(least.0.saturating_add(TOKENS_SKIPPED << doubled));
                    self.tokens_taken += 1;
                    self.least_token = self.least_token.max(least);
                    self.release_spare(at, turn);
                }
            }
            Event::TokenRefused(why) => {
                if self.hear_unconfirmed(at, "", turn) {
                    self.nodes[at].unfit = Some(why);
                    self.release_spare(at, turn);
                }
            }
            Event::Renewed { sent, ttl_ms } if matches!(node.hold, Hold::Firm | Hold::Unknown) => {
                node.ttl_ms = ttl_ms;
                self.hear_firm(at, sent, turn.now);
            }
            Event::Gone => match node.hold {
                Hold::Releasing { .. } => node.gone(),
                Hold::Firm | Hold::Unknown => {
                    let was_sure = node.sent.is_some();
                    node.gone();
                    if was_sure && matches!(self.phase, Phase::Running) {
                        turn.effects.push(Effect::Say(Change::Lost(at, self.held())));
                    }
                }
                // This is a late answer about an earlier lease.
                _ => {}
            },
            // The same.
            Event::Queued | Event::Granted(_) | Event::Confirmed(_) | Event::Renewed { .. } => {}
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
                node.unfit = Some(NodeFailure::permanent(format!(
                    "it granted the lock {times} times and never confirmed it: {why}"
                )));
            }
        }
        true
    }

    /// Releases a spare that a node granted and cannot confirm; otherwise it would stay collecting.
    fn release_spare(&mut self, at: usize, turn: &mut Turn) {
        if matches!(self.phase, Phase::Running) {
            self.release(turn, at);
        }
    }

    fn hear_refusal(&mut self, at: usize, refusal: Refusal, why: NodeFailure, turn: &mut Turn) {
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
            Refusal::NotYet(left_ms) => node.grants_from = turn.now.saturating_add(left_ms),
            Refusal::Unfit => node.unfit = Some(why),
            // This was a spare: the command runs without it.
            Refusal::OtherList if runs => {
                turn.effects.push(Effect::Say(Change::OtherList(at, why.what.clone())));
                node.unfit = Some(why);
            }
            Refusal::Invalid if runs => node.unfit = Some(why),
            _ if runs => node.ask_at = ask_at,
            Refusal::Invalid | Refusal::OtherList => {
                self.end(turn, Outcome::Failed(vec![(at, why)]));
            }
            _ if self.plan.require == Require::Any => node.refused = Some((refusal, why)),
            _ if is_spare || !is_its_turn => node.ask_at = turn.now + SILENCE_MS,
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
}
