//! Confirms enough grants, which makes them firm. The command starts when all these nodes have
//! answered.

use super::node::Hold;
use super::turn::Turn;
use super::{Coordinator, Phase, Round};
use crate::{Deadline, Effect, Require};

impl Coordinator {
    pub(super) fn confirm(&mut self, turn: &mut Turn, chosen: &[usize]) -> bool {
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::StartsWhenConfirmed) {
            for at in chosen {
                self.nodes[*at].hold = Hold::Firm;
                self.nodes[*at].sent = Some(turn.now);
            }
        }
        let silence_ms = self.timing.silence_ms;
        let mut is_pending = false;
        for &at in chosen {
            let is_lost = match self.nodes[at].hold {
                Hold::Firm => false,
                Hold::Confirming { since } => {
                    is_pending = true;
                    self.suspect(turn, at, since, silence_ms)
                }
                _ => true,
            };
            if is_lost {
                self.fail_to_confirm(turn, at);
                return true;
            }
        }
        if is_pending {
            return false;
        }
        match self.deadline(turn.now).filter(|deadline| turn.now < deadline.term_at) {
            Some(deadline) => {
                self.start(turn, chosen, deadline);
                true
            }
            None => self.renew_before_the_start(turn, chosen),
        }
    }

    /// Releases everything, because one of the chosen nodes did not confirm. With `any`, requests
    /// that wait at other nodes keep their place.
    fn fail_to_confirm(&mut self, turn: &mut Turn, at: usize) {
        if self.plan.require != Require::Any {
            return self.ask_anew(turn, Some(at));
        }
        if !matches!(self.nodes[at].hold, Hold::Nothing | Hold::Releasing { .. }) {
            self.release(turn, at);
        }
        self.token = None;
        self.phase = Phase::Collecting(Round { at: 0, since: turn.now });
    }

    /// Renews first if the answers came so late that too little of the TTL is left to start a
    /// command.
    fn renew_before_the_start(&mut self, turn: &mut Turn, chosen: &[usize]) -> bool {
        for &at in chosen {
            if self.sure_until(at) > turn.now + self.timing.grace_ms {
                continue;
            }
            let is_lost = match self.nodes[at].renewing {
                None => {
                    self.renew(turn, at);
                    !self.may_answer(turn, at)
                }
                Some(since) => self.suspect(turn, at, since, self.timing.renewal_silence_ms),
            };
            if is_lost {
                self.fail_to_confirm(turn, at);
                return true;
            }
        }
        false
    }

    fn start(&mut self, turn: &mut Turn, chosen: &[usize], deadline: Deadline) {
        if self.plan.require == Require::Any {
            self.members = chosen.to_vec();
        }
        // Releases surplus requests and grants, except spares.
        for at in 0..self.nodes.len() {
            if self.nodes[at].is_spare() {
                continue;
            }
            match self.nodes[at].hold {
                Hold::Asked { .. } | Hold::Queued | Hold::Collecting { .. } => {
                    self.cancel(turn, at);
                }
                _ => {}
            }
        }
        self.published = Some(deadline.kill_at);
        self.phase = Phase::Running;
        let token = self.token.filter(|_| self.plan.require.is_exclusive());
        turn.carry_out(Effect::Start { token, nodes: chosen.to_vec(), deadline });
    }
}
