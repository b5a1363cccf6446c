//! Confirms enough grants, keeps the lock while the command runs, and releases everything at the
//! end.
//!
//! Confirming makes grants firm. The command starts when all the chosen nodes have answered. Then
//! the coordinator keeps its deadline, renewals and spares.
//!
//! A coordinator can also continue with a lease of which only the handle is known. The time of its
//! last renewal is unknown, so no part counts before its node has answered.

use super::node_state::{Hold, PATIENCE_MS, SILENCE_MS, Timing, Turn};
use super::{Coordinator, Phase, Round};
use crate::{Asking, Call, Effect, Millis, Outcome, Require};
use canal_sys::deadline_page::Deadline;

impl Coordinator {
    pub(super) fn confirm(&mut self, turn: &mut Turn, chosen: &[usize]) -> bool {
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::StartsWhenConfirmed) {
            for at in chosen {
                self.nodes[*at].hold = Hold::Firm;
                self.nodes[*at].sent = Some(turn.now);
            }
        }
        let mut is_pending = false;
        for &at in chosen {
            let is_lost = match self.nodes[at].hold {
                Hold::Firm => false,
                Hold::Confirming { .. } => {
                    is_pending = true;
                    self.nodes[at].suspect(turn, SILENCE_MS)
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
        match self.deadline().filter(|deadline| turn.now < deadline.term_at) {
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
                Some(_) => self.nodes[at].suspect(turn, self.timing.renewal_silence_ms),
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
            if !self.nodes[at].is_spare() {
                self.cancel(turn, at);
            }
        }
        self.published = Some(deadline.kill_at);
        self.phase = Phase::Running;
        let token = self.token.filter(|_| self.plan.require.is_exclusive());
        turn.effects.push(Effect::Start { token, nodes: chosen.to_vec(), deadline });
    }

    pub(super) fn keep_running(&mut self, turn: &mut Turn) -> bool {
        let deadline = self.deadline().filter(|deadline| !turn.is_past(deadline.kill_at));
        let Some(deadline) = deadline else {
            self.phase = Phase::Lost;
            turn.effects.push(Effect::KillNow);
            return true;
        };
        if self.published != Some(deadline.kill_at) {
            self.published = Some(deadline.kill_at);
            turn.effects.push(Effect::Deadline(deadline));
        }
        for at in 0..self.nodes.len() {
            if !self.members.contains(&at) {
                self.release_leftover(turn, at);
                self.nodes[at].suspect(turn, SILENCE_MS);
            } else {
                self.keep_lease(turn, at);
                self.keep_spare(turn, at);
            }
        }
        false
    }

    /// Until when enough nodes certainly hold the lock: the time by which all but `need - 1` may
    /// have granted it to another request. `None` if too few hold it.
    pub(super) fn deadline(&self) -> Option<Deadline> {
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
        let before = |ms| kill_at.saturating_sub(ms);
        let (reached_at, term_at) = (before(timing.lived_ms()), before(timing.grace_ms));
        Some(Deadline { reached_at, term_at, kill_at })
    }

    /// The members that hold the lock, as far as is known.
    pub(super) fn sure_nodes(&self) -> impl Iterator<Item = usize> {
        self.members.iter().copied().filter(|at| self.nodes[*at].sent.is_some())
    }

    /// Until when a node certainly holds it.
    pub(super) fn sure_until(&self, at: usize) -> Millis {
        let lived_ms = self.timing_of(at).lived_ms();
        self.nodes[at].sent.map_or(0, |sent| sent.saturating_add(lived_ms))
    }

    /// The durations that follow from the TTL of a node's lease.
    pub(super) fn timing_of(&self, at: usize) -> Timing {
        self.nodes[at].ttl_ms.map_or(self.timing, Timing::new)
    }

    /// Renews the lease of a node, or finds out whether it has one.
    pub(super) fn keep_lease(&mut self, turn: &mut Turn, at: usize) {
        let node = &self.nodes[at];
        if !matches!(node.hold, Hold::Firm | Hold::Unknown) || !node.is_open() {
            return;
        }
        if node.renewing.is_some() {
            let silence_ms = self.timing_of(at).renewal_silence_ms;
            self.nodes[at].suspect(turn, silence_ms);
        } else if node.hold == Hold::Unknown || turn.is_past(node.renew_at) {
            self.renew(turn, at);
        }
    }

    pub(super) fn renew(&mut self, turn: &mut Turn, at: usize) {
        let silence_ms = self.timing_of(at).renewal_silence_ms;
        let node = &mut self.nodes[at];
        if node.is_open() {
            node.renewing = Some(turn.now);
            turn.call(at, Call::Renew(node.lease), silence_ms);
        }
    }

    /// Gains a node that the start did not need, or that has lost its part since.
    fn keep_spare(&mut self, turn: &mut Turn, at: usize) {
        if !self.plan.require.has_spares() {
            return;
        }
        let is_ready = self.may_answer(turn, at) && self.nodes[at].is_open();
        match self.nodes[at].hold {
            Hold::Nothing if is_ready => {
                self.ask(turn, at, Asking { no_wait: true, spare: true });
            }
            Hold::Collecting { token } => {
                // Its tokens may have grown beyond the token of the run. The nodes that confirmed
                // before the start keep the order of runs.
                let token = self.token.map_or(token, |run| run.max(token));
                self.confirm_at(turn, at, token);
            }
            Hold::Firm | Hold::Unknown => {}
            _ => drop(self.nodes[at].suspect(turn, SILENCE_MS)),
        }
    }

    /// Renews each part once, and keeps renewing when enough nodes have answered.
    pub(super) fn renew_parts(&mut self, turn: &mut Turn) -> bool {
        let members = self.members.iter().copied();
        let gone: Vec<usize> = members.filter(|at| self.nodes[*at].hold == Hold::Nothing).collect();
        if self.members.len() - gone.len() < self.need {
            return self.end(turn, Outcome::Lost(gone));
        }
        for at in self.members.clone() {
            self.keep_lease(turn, at);
        }
        let is_enough = self.sure_nodes().count() >= self.need;
        let patience_ms = if is_enough { SILENCE_MS } else { PATIENCE_MS };
        let is_over = turn.is_past(self.begun.saturating_add(patience_ms));
        let owes =
            |at: &usize| self.nodes[*at].hold != Hold::Nothing && self.nodes[*at].sent.is_none();
        let owed: Vec<usize> = self.members.iter().copied().filter(owes).collect();
        let may_answer = |at: &usize| !self.nodes[*at].is_permanently_away();
        if !is_over && owed.iter().any(may_answer) {
            return false;
        }
        if !is_enough {
            self.phase = Phase::Over;
            turn.effects.push(Effect::End(self.failed_over(owed)));
            return true;
        }
        // If this process was stopped meanwhile, the answers are too old, and the parts are renewed
        // again.
        let Some(deadline) = self.deadline().filter(|it| turn.now < it.term_at) else {
            return false;
        };
        self.published = Some(deadline.kill_at);
        self.phase = Phase::Running;
        let nodes = self.sure_nodes().collect();
        turn.effects.push(Effect::Start { token: self.token, nodes, deadline });
        true
    }

    /// Whether a node that the start did not need may soon hold its part as well.
    pub fn awaits_spares(&self, now: Millis) -> bool {
        let may_join = |at: &usize| {
            let node = &self.nodes[*at];
            match node.hold {
                Hold::Asked { .. } | Hold::Collecting { .. } | Hold::Confirming { .. } => true,
                Hold::Nothing => {
                    let until = node.silent_since.map(|since| since + SILENCE_MS);
                    let is_ready = node.ask_at.max(node.grants_from) <= now;
                    is_ready && !self.never_grants(*at) && until.is_none_or(|until| now < until)
                }
                _ => false,
            }
        };
        let runs = matches!(self.phase, Phase::Running);
        runs && self.plan.require.has_spares() && self.members.iter().any(may_join)
    }

    /// Releases everything, the last node first: requests that begin now ask the first node first,
    /// and by then find the others free.
    pub(super) fn finish(&mut self, turn: &mut Turn, outcome: Outcome, until: Millis) -> bool {
        let mut left = Vec::new();
        for at in (0..self.nodes.len()).rev() {
            let timing = self.timing_of(at);
            let longest_ms = timing.ttl_ms + timing.margin_ms;
            self.cancel(turn, at);
            let node = &mut self.nodes[at];
            if matches!(node.hold, Hold::Firm | Hold::Unknown | Hold::Confirming { .. }) {
                let has_ended = |sent: Millis| turn.now >= sent.saturating_add(longest_ms);
                if node.sent.is_some_and(has_ended) {
                    node.gone();
                } else if node.is_open() {
                    self.release(turn, at);
                }
            }
            if self.nodes[at].hold != Hold::Nothing {
                left.push(at);
            }
        }
        left.reverse();
        let is_hopeless = |at: &usize| self.nodes[*at].is_permanently_away();
        let is_over = left.iter().all(is_hopeless) || turn.is_past(until);
        if is_over {
            let outcome = match outcome {
                Outcome::GivenBack(_) => Outcome::GivenBack(left),
                other => other,
            };
            self.phase = Phase::Over;
            turn.effects.push(Effect::End(outcome));
        }
        is_over
    }
}
