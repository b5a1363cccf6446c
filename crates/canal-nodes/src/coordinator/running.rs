//! Keeps the lock while the command runs: its deadline, renewals and spares.

use super::node::Hold;
use super::turn::Turn;
use super::{Coordinator, Phase};
use crate::{Asking, Deadline, Effect, Millis, Timing};

impl Coordinator {
    pub(super) fn keep_running(&mut self, turn: &mut Turn) -> bool {
        let deadline = self.deadline(turn.now);
        let Some(deadline) = deadline.filter(|deadline| !turn.is_past(deadline.kill_at)) else {
            self.phase = Phase::Lost;
            turn.carry_out(Effect::KillNow);
            return true;
        };
        if self.published != Some(deadline.kill_at) {
            self.published = Some(deadline.kill_at);
            turn.carry_out(Effect::Deadline(deadline));
        }
        for at in 0..self.nodes.len() {
            if !self.members.contains(&at) {
                self.release_leftover(turn, at);
                if let Hold::Releasing { since } = self.nodes[at].hold {
                    self.suspect(turn, at, since, self.timing.silence_ms);
                }
            } else {
                self.keep_lease(turn, at);
                self.keep_spare(turn, at);
            }
        }
        false
    }

    /// Until when enough nodes certainly hold the lock: the time by which all but `need - 1` may
    /// have granted it to another request. `None` if too few hold it.
    pub(super) fn deadline(&self, now: Millis) -> Option<Deadline> {
        let sure = |at| (self.sure_until(at), self.timing_of(at).ttl_ms);
        let mut until: Vec<(Millis, Millis)> = self.sure_nodes().map(sure).collect();
        until.sort_unstable_by(|one, other| other.cmp(one));
        let need = self.need;
        #[cfg(test)]
        let need = match crate::sim::is_broken(crate::sim::Rule::CountsEnough) {
            true => need.saturating_sub(1).max(1),
            false => need,
        };
        let (kill_at, ttl_ms) = *until.get(need.checked_sub(1)?)?;
        let timing = Timing::new(ttl_ms);
        let lived_ms = timing.ttl_ms - timing.margin_ms;
        let term_at = match kill_at {
            Millis::MAX => Millis::MAX,
            _ => kill_at.saturating_sub(timing.grace_ms),
        };
        let reached_at = match kill_at {
            Millis::MAX => now,
            _ => kill_at.saturating_sub(lived_ms),
        };
        Some(Deadline { reached_at, term_at, kill_at })
    }

    /// The members that hold the lock, as far as is known.
    pub(super) fn sure_nodes(&self) -> impl Iterator<Item = usize> {
        self.members.iter().copied().filter(|at| self.nodes[*at].sent.is_some())
    }

    /// Until when a node certainly holds it.
    pub(super) fn sure_until(&self, at: usize) -> Millis {
        let timing = self.timing_of(at);
        let lived_ms = timing.ttl_ms - timing.margin_ms;
        self.nodes[at].sent.map_or(0, |sent| sent.saturating_add(lived_ms))
    }

    /// The durations that follow from the TTL of a node's lease.
    pub(super) fn timing_of(&self, at: usize) -> Timing {
        self.nodes[at].ttl_ms.map_or(self.timing, Timing::new)
    }

    /// The members that no longer certainly hold the lock.
    pub(super) fn lost_nodes(&self, now: Millis) -> Vec<usize> {
        let members = self.members.iter().copied();
        members.filter(|at| self.sure_until(*at) <= now).collect()
    }

    /// Renews the lease of a node, or finds out whether it has one.
    pub(super) fn keep_lease(&mut self, turn: &mut Turn, at: usize) {
        let node = &self.nodes[at];
        if !matches!(node.hold, Hold::Firm | Hold::Unknown) || !node.link.is_open() {
            return;
        }
        match node.renewing {
            Some(since) => {
                let silence_ms = self.timing_of(at).renewal_silence_ms;
                self.suspect(turn, at, since, silence_ms);
            }
            None if node.hold == Hold::Unknown || turn.is_past(node.renew_at) => {
                self.renew(turn, at);
            }
            None => {}
        }
    }

    pub(super) fn renew(&mut self, turn: &mut Turn, at: usize) {
        let silence_ms = self.timing_of(at).renewal_silence_ms;
        let node = &mut self.nodes[at];
        if node.link.is_open() {
            node.renewing = Some(turn.now);
            turn.call(Effect::Renew { node: at, lease: node.lease }, silence_ms);
        }
    }

    /// Gains a node that the start did not need, or that has lost its part since.
    fn keep_spare(&mut self, turn: &mut Turn, at: usize) {
        if !self.plan.require.has_spares() {
            return;
        }
        let is_ready = self.may_answer(turn, at) && self.nodes[at].link.is_open();
        match self.nodes[at].hold {
            Hold::Nothing if is_ready => {
                self.ask(turn, at, Asking { no_wait: true, spare: true });
            }
            Hold::Asked { since } | Hold::Confirming { since } | Hold::Releasing { since } => {
                self.suspect(turn, at, since, self.timing.silence_ms);
            }
            Hold::Collecting { token } => {
                // Its tokens may have grown beyond the token of the run. The nodes that confirmed
                // before the start keep the order of runs.
                let token = self.token.map_or(token, |run| run.max(token));
                self.confirm_at(turn, at, token);
            }
            _ => {}
        }
    }
}
