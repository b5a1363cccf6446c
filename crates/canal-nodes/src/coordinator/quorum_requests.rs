//! Asks nodes until enough have granted their part.
//!
//! `all` and `majority` ask one node after the other, in the order of their ids, and wait at one
//! node at a time. A request that waits at a node holds only nodes before it, so no ring of waits
//! can arise, and the first node decides between requests that begin together. `any` asks all nodes
//! at once.
//!
//! `all-alive` and `majority-alive` first choose the nodes that count: those that answer.

use canal_core::{CONFIRMED_TOKEN_MAX, Token};
use canal_protocol::NodeFailure;

use super::node_state::{Hold, Node, SILENCE_MS, Turn};
use super::{Coordinator, Phase, Round};
use crate::{Asking, Call, Change, Effect, Millis, Outcome, Refusal, Require};

/// How long a node may be silent, in milliseconds, before a request passes over it because enough
/// others answer.
pub(super) const PASS_OVER_MS: Millis = 1_000;

/// The state of the node whose turn it is.
enum Step {
    /// It has yet to answer, or the request waits there.
    Stay,
    /// It has granted its part, or the request passes over it.
    Next,
    /// The request is over.
    Ended,
}

impl Coordinator {
    pub(super) fn collect(&mut self, turn: &mut Turn, round: Round) -> bool {
        let is_enough = self.granted().count() >= self.need;
        let over = if is_enough { None } else { self.time_over(turn) };
        if let Some(outcome) = over {
            return self.end(turn, outcome);
        }
        if self.plan.require.counts_the_alive() {
            if self.drop_the_silent(turn) {
                return true;
            }
        } else {
            let members = self.members.iter().copied();
            let never: Vec<usize> = members.filter(|at| self.never_grants(*at)).collect();
            if self.members.len() - never.len() < self.need {
                let outcome = self.failed_over(never);
                return self.end(turn, outcome);
            }
        }
        for at in 0..self.nodes.len() {
            self.release_leftover(turn, at);
        }
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::AsksInOrder) {
            return self.collect_at_once(turn);
        }
        match self.plan.require {
            Require::Any => self.collect_at_once(turn),
            _ => self.collect_in_order(turn, round),
        }
    }

    /// Waits until each node has answered or its time is over. The nodes that answered become the
    /// members.
    pub(super) fn count_the_alive(&mut self, turn: &mut Turn, until: Millis) -> bool {
        if let Some(outcome) = self.time_over(turn) {
            return self.end(turn, outcome);
        }
        let is_open = |at: &usize| self.nodes[*at].is_open();
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
                return self.end(turn, outcome);
            }
            return false;
        }
        self.count_only(members);
        self.phase = Phase::Collecting(Round { at: 0, since: turn.now });
        true
    }

    /// Drops the members that have become silent. Returns whether another phase has begun: if so,
    /// the request releases everything, because it now needs fewer grants from other nodes.
    fn drop_the_silent(&mut self, turn: &mut Turn) -> bool {
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

    /// The outcome if the time to wait is over.
    fn time_over(&self, turn: &mut Turn) -> Option<Outcome> {
        let wait_ms = self.plan.wait_ms.filter(|wait_ms| *wait_ms > 0)?;
        let from = self.plan.asked_at;
        #[cfg(test)]
        let from = match crate::sim::is_broken(crate::sim::Rule::WaitsOnce) {
            true => self.begun,
            false => from,
        };
        if !turn.is_past(from.saturating_add(wait_ms)) {
            return None;
        }
        let may_answer = self.members.iter().filter(|at| self.may_answer(turn, **at)).count();
        if may_answer < self.need {
            return Some(self.failed(turn));
        }
        let why = NodeFailure::passing("the wait timed out");
        Some(self.refused(turn.now, None, Refusal::Timeout, why))
    }

    /// The outcome of a refusal, by a node or by the request itself.
    pub(super) fn refused(
        &self,
        now: Millis,
        node: Option<usize>,
        refusal: Refusal,
        why: NodeFailure,
    ) -> Outcome {
        let is_over = |since: Millis| now >= since.saturating_add(PASS_OVER_MS);
        let is_silent = |at: &usize| match self.nodes[*at].hold {
            Hold::Asked { since } | Hold::Releasing { since } => is_over(since),
            _ => self.nodes[*at].silent_since.is_some_and(is_over),
        };
        let others = self.members.iter().copied().filter(|at| Some(*at) != node);
        Outcome::Refused { node, refusal, why, silent: others.filter(is_silent).collect() }
    }

    /// The outcome if too few nodes answer.
    pub(super) fn failed(&self, turn: &mut Turn) -> Outcome {
        let silent = self.members.iter().copied().filter(|at| !self.may_answer(turn, *at));
        self.failed_over(silent.collect())
    }

    /// The outcome because of what keeps these nodes from being used.
    pub(super) fn failed_over(&self, nodes: Vec<usize>) -> Outcome {
        Outcome::Failed(nodes.into_iter().map(|at| (at, self.nodes[at].obstacle())).collect())
    }

    /// Asks the nodes in order, starting with the one whose turn it is.
    fn collect_in_order(&mut self, turn: &mut Turn, mut round: Round) -> bool {
        loop {
            if self.granted().count() >= self.need {
                if self.announces(turn) {
                    return false;
                }
                return self.begin_to_confirm(turn);
            }
            if self.within_reach(turn, round.at, |_| true) < self.need {
                #[cfg(test)]
                if crate::sim::is_broken(crate::sim::Rule::GivesBackBelowNeed) {
                    return false;
                }
                // Too few nodes are left in this round. The next one begins when enough answer. A
                // late node is not asked out of order, because the order prevents deadlocks.
                self.give_back(turn);
                round = Round { at: 0, since: turn.now };
                self.phase = Phase::Collecting(round);
                if self.within_reach(turn, 0, |_| true) >= self.need {
                    continue;
                }
                if self.plan.wait_ms == Some(0) {
                    let outcome = self.failed(turn);
                    return self.end(turn, outcome);
                }
                return false;
            }
            let Some(at) = self.members.get(round.at).copied() else { return false };
            match self.ask_in_turn(turn, at, round) {
                Step::Stay => {
                    // Nodes that were passed over may have answered since. The request does not
                    // wait there, because it may hold later nodes.
                    for at in self.members.clone().into_iter().take(round.at) {
                        match self.nodes[at].hold {
                            Hold::Nothing
                                if self.nodes[at].is_open() && self.may_answer(turn, at) =>
                            {
                                self.ask(turn, at, Asking { no_wait: true, spare: false });
                            }
                            _ => drop(self.nodes[at].suspect(turn, SILENCE_MS)),
                        }
                    }
                    break;
                }
                Step::Next => round = Round { at: round.at + 1, since: turn.now },
                Step::Ended => return true,
            }
        }
        self.phase = Phase::Collecting(round);
        false
    }

    /// Announces the list of the request before it confirms: asks each other node in reach for a
    /// spare. A node that knows a list which need not meet this one refuses. Returns whether one of
    /// them may still answer.
    fn announces(&mut self, turn: &mut Turn) -> bool {
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::AnnouncesLists) {
            return false;
        }
        let mut is_pending = false;
        for at in self.members.clone() {
            let has_to = self.plan.require == Require::Majority && !self.is_granted(at);
            if !has_to || self.never_grants(at) || self.nodes[at].is_announced && self.is_free(at) {
                continue;
            }
            if self.is_free(at) && self.nodes[at].is_open() && self.may_answer(turn, at) {
                self.ask(turn, at, Asking { no_wait: true, spare: true });
            }
            is_pending |= match self.nodes[at].hold {
                Hold::Asked { since } | Hold::Releasing { since } => {
                    !turn.is_silent(since, PASS_OVER_MS)
                }
                Hold::Nothing => {
                    let node = &self.nodes[at];
                    !node.is_open() && node.may_answer(turn, PASS_OVER_MS)
                }
                _ => false,
            };
        }
        is_pending
    }

    fn is_free(&self, at: usize) -> bool {
        self.nodes[at].hold == Hold::Nothing
    }

    /// The number of nodes that have granted their part, or still may: those whose turn is not
    /// before `from`, if they count.
    fn within_reach(&self, turn: &mut Turn, from: usize, counts: fn(&Node) -> bool) -> usize {
        let may_grant = |at: &&usize| {
            !self.is_granted(**at) && counts(&self.nodes[**at]) && self.may_answer(turn, **at)
        };
        self.granted().count() + self.members.iter().skip(from).filter(may_grant).count()
    }

    /// Advances the node whose turn it is by one step.
    fn ask_in_turn(&mut self, turn: &mut Turn, at: usize, round: Round) -> Step {
        if self.is_granted(at) || !self.may_answer(turn, at) {
            return Step::Next;
        }
        let is_first = self.granted().next().is_none();
        let must_not_wait = self.plan.wait_ms == Some(0);
        let others_answer = self.within_reach(turn, round.at + 1, Node::is_open) >= self.need;
        let silence_ms = if others_answer { PASS_OVER_MS } else { SILENCE_MS };
        match self.nodes[at].hold {
            Hold::Nothing if self.nodes[at].is_open() => {
                // The node may just have refused it as a spare; here the request waits.
                self.nodes[at].ask_at = 0;
                let no_wait = must_not_wait && is_first;
                self.ask(turn, at, Asking { no_wait, spare: false });
                Step::Stay
            }
            // The node was asked for a spare.
            Hold::Asked { .. } | Hold::Collecting { .. } if self.nodes[at].is_spare() => {
                self.release(turn, at);
                Step::Stay
            }
            Hold::Asked { .. } | Hold::Releasing { .. } => {
                let is_silent = self.nodes[at].suspect(turn, silence_ms);
                if is_silent { Step::Next } else { Step::Stay }
            }
            // The holder of the first node has the lock, unless its owner passed over that node. So
            // even with `-n`, a later node gets a little time: if it refused at once, two cron jobs
            // could refuse each other.
            Hold::Queued if must_not_wait && turn.is_past(round.since + PASS_OVER_MS) => {
                let why = NodeFailure::passing("another request holds it");
                let outcome = self.refused(turn.now, Some(at), Refusal::Full, why);
                self.end(turn, outcome);
                Step::Ended
            }
            Hold::Nothing if others_answer && !self.nodes[at].may_answer(turn, silence_ms) => {
                Step::Next
            }
            _ => Step::Stay,
        }
    }

    /// Whether the request was to wait at a node that did not grant its part at once.
    pub(super) fn is_its_turn(&self, at: usize) -> bool {
        match self.phase {
            Phase::Collecting(round) if self.plan.require != Require::Any => {
                self.members.get(round.at) == Some(&at)
            }
            _ => true,
        }
    }

    /// Asks all nodes that answer.
    fn collect_at_once(&mut self, turn: &mut Turn) -> bool {
        for at in self.members.clone() {
            let may_answer = self.may_answer(turn, at);
            let node = &self.nodes[at];
            match node.hold {
                Hold::Nothing if may_answer && node.is_open() && node.refused.is_none() => {
                    let no_wait = self.plan.wait_ms == Some(0);
                    self.ask(turn, at, Asking { no_wait, spare: false });
                }
                _ => drop(self.nodes[at].suspect(turn, SILENCE_MS)),
            }
        }
        if self.granted().count() >= self.need {
            return self.begin_to_confirm(turn);
        }
        // With `-n`, a silent node does not count.
        let must_not_wait = self.plan.wait_ms == Some(0);
        let may_grant = |at: &usize| {
            let may_answer = self.may_answer(turn, *at);
            let is_refused = self.nodes[*at].refused.is_some();
            !is_refused && !self.never_grants(*at) && (may_answer || !must_not_wait)
        };
        if self.members.iter().any(may_grant) {
            return false;
        }
        let refused =
            self.members.iter().find_map(|at| Some((*at, self.nodes[*at].refused.clone()?)));
        let outcome = match refused {
            Some((at, (refusal, why))) => self.refused(turn.now, Some(at), refusal, why),
            None => self.failed(turn),
        };
        self.end(turn, outcome)
    }

    /// Asks a node. While the earlier request may still be there, this reuses its number, so that
    /// the request keeps its place and does not wait behind itself.
    pub(super) fn ask(&mut self, turn: &mut Turn, at: usize, asking: Asking) {
        let node = &mut self.nodes[at];
        if !turn.is_past(node.ask_at) {
            return;
        }
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::ComesBackUnderItsName) {
            node.asked = None;
        }
        match node.asked {
            Some(before) if before == asking => {}
            Some(_) => return self.release(turn, at),
            None => node.lease += 1,
        }
        node.asked = Some(asking);
        node.is_announced |= asking.spare;
        node.hold = Hold::Asked { since: turn.now };
        turn.call(at, Call::Ask(node.lease, asking), SILENCE_MS);
    }

    /// Releases anything that an earlier attempt, or another coordinator, may have left.
    pub(super) fn release_leftover(&mut self, turn: &mut Turn, at: usize) {
        if self.nodes[at].hold == Hold::Unknown && self.nodes[at].is_open() {
            self.release(turn, at);
        }
    }

    /// Confirms as many grants as are needed, with a token that is larger than each of theirs.
    fn begin_to_confirm(&mut self, turn: &mut Turn) -> bool {
        let chosen: Vec<usize> = self.granted().take(self.need).collect();
        let tokens = chosen.iter().filter_map(|at| match self.nodes[*at].hold {
            Hold::Collecting { token } => Some((token, *at)),
            _ => None,
        });
        let Some((largest, by)) = tokens.max() else { return false };
        let token = Token(largest.0.saturating_add(1)).max(self.least_token);
        if token.0 > CONFIRMED_TOKEN_MAX {
            let why = format!("its tokens reached {largest}, the largest there is");
            return self.end(turn, Outcome::Failed(vec![(by, NodeFailure::permanent(why))]));
        }
        self.token = Some(token);
        for at in &chosen {
            self.confirm_at(turn, *at, token);
        }
        self.phase = Phase::Confirming { chosen };
        true
    }

    pub(super) fn confirm_at(&mut self, turn: &mut Turn, at: usize, token: Token) {
        let node = &mut self.nodes[at];
        node.hold = Hold::Confirming { since: turn.now };
        node.asked = None;
        turn.call(at, Call::ConfirmAt(node.lease, token), SILENCE_MS);
    }

    /// Withdraws requests and unconfirmed grants, and releases confirmed leases.
    fn give_back(&mut self, turn: &mut Turn) {
        for at in (0..self.nodes.len()).rev() {
            self.cancel(turn, at);
            if matches!(self.nodes[at].hold, Hold::Confirming { .. } | Hold::Firm) {
                self.release(turn, at);
            }
            let node = &mut self.nodes[at];
            (node.refused, node.is_announced, node.ask_at) = (None, false, 0);
        }
        self.token = None;
    }

    /// Releases everything and starts over, either because of a node or to give way.
    pub(super) fn ask_anew(&mut self, turn: &mut Turn, because_of: Option<usize>) {
        self.give_back(turn);
        self.phase = Phase::Collecting(Round { at: 0, since: turn.now });
        turn.effects.push(Effect::Say(Change::AskedAnew(because_of)));
    }

    fn is_granted(&self, at: usize) -> bool {
        matches!(self.nodes[at].hold, Hold::Collecting { .. }) && !self.nodes[at].is_spare()
    }

    /// The members that have granted their part.
    fn granted(&self) -> impl Iterator<Item = usize> {
        self.members.iter().copied().filter(|at| self.is_granted(*at))
    }

    /// Whether the request waits at a node.
    pub fn waits(&self) -> bool {
        let waits = |at: &usize| matches!(self.nodes[*at].hold, Hold::Queued);
        matches!(self.phase, Phase::Collecting(_)) && self.members.iter().any(waits)
    }

    /// Whether one node has granted its part while the request waits at another. A request without
    /// any grant and outside any other run blocks only those behind it.
    pub fn holds_while_it_waits(&self) -> bool {
        self.waits() && self.nodes.iter().any(Node::is_held)
    }

    /// Whether a node will not grant the request until a person changes something.
    pub(super) fn never_grants(&self, at: usize) -> bool {
        self.nodes[at].unfit.is_some() || self.nodes[at].is_permanently_away()
    }

    /// Whether a node answers, or may answer soon, and may grant its part.
    pub(super) fn may_answer(&self, turn: &mut Turn, at: usize) -> bool {
        let node = &self.nodes[at];
        let waits = matches!(node.hold, Hold::Queued);
        let is_ready = node.unfit.is_none() && (waits || turn.is_past(node.grants_from));
        is_ready && node.may_answer(turn, SILENCE_MS)
    }

    /// Releases the lease that a node may hold, if the node is in reach.
    pub(super) fn release(&mut self, turn: &mut Turn, at: usize) {
        let node = &mut self.nodes[at];
        node.sent = None;
        node.renewing = None;
        node.hold = Hold::Unknown;
        if node.is_open() {
            node.hold = Hold::Releasing { since: turn.now };
            turn.call(at, Call::Release(node.lease), SILENCE_MS);
        }
    }

    /// Withdraws a request or a collecting grant, if the node has one.
    pub(super) fn cancel(&mut self, turn: &mut Turn, at: usize) {
        let node = &mut self.nodes[at];
        if node.hold.ends_with_connection() {
            node.hold = Hold::Nothing;
            node.close(turn.now);
            turn.effects.push(Effect::Node(at, Call::Cancel));
        }
    }

    /// Begins to release everything. Returns true: another phase has begun.
    pub(super) fn end(&mut self, turn: &Turn, outcome: Outcome) -> bool {
        self.phase = Phase::Ending { outcome, until: turn.now + SILENCE_MS };
        true
    }
}
