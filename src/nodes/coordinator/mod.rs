//! The coordinator of one request over nodes.
//!
//! Each input first changes what is known of a node (`hearing`); then the phase in which the request
//! is decides what to do about all that is known (`alive`, `collecting`, `confirming`, `running`,
//! `ending`). So nothing depends on which of two nodes is heard first.
//!
//! Invariant: a lease counts for the deadline only from the time before the call was sent that the
//! node has answered.

mod alive;
mod collecting;
mod confirming;
mod ending;
mod hearing;
mod link;
mod node;
mod progress;
mod renewing;
mod running;
#[cfg(test)]
mod tests;
mod turn;

use node::{Hold, Node};
use progress::Said;
use turn::Turn;

use super::{Effect, Input, Millis, Outcome, Part, Plan, Standing, Timing};
use crate::core::Token;

/// A coordinator that is called so much later than it wanted was stopped, in milliseconds. For as
/// long after that it reads what it was told meanwhile before it counts a node as silent.
const LATE_MS: Millis = 1_000;

/// The coordinator of one request over nodes.
#[derive(Debug)]
pub struct Coordinator {
    plan: Plan,
    timing: Timing,
    /// The nodes that count, ascending.
    members: Vec<usize>,
    /// How many of them must hold the lock.
    need: usize,
    /// All nodes of the plan.
    nodes: Vec<Node>,
    phase: Phase,
    /// The token that leases are confirmed with.
    token: Option<Token>,
    /// The next token is not smaller: smaller ones were taken.
    least_token: Token,
    /// How often a node had given out the token that it was to confirm.
    tokens_taken: u32,
    /// When the first input came.
    begun: Option<Millis>,
    /// When it wants to be called again.
    wake_at: Option<Millis>,
    /// Before this time no node counts as silent.
    patient_until: Millis,
    /// Until when the command may run, as published last.
    published: Option<Millis>,
    said: Said,
}

/// How far the request is.
#[derive(Clone, Debug)]
enum Phase {
    /// Waits to see which nodes answer; only where just these count.
    Counting { until: Millis },
    /// Asks nodes.
    Collecting(Round),
    /// Enough nodes granted it; these are to confirm.
    Confirming { chosen: Vec<usize> },
    /// Finds out what is left of a lease by renewing it.
    Renewing,
    /// The command may run.
    Running,
    /// Too few nodes hold the lock: the command is being killed.
    Lost,
    /// Gives everything back.
    Ending { outcome: Outcome, until: Millis },
    /// Everything was said.
    Over,
}

/// One attempt at asking enough nodes.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// Whose turn it is, as an index into the members. Those before it have granted, or were passed
    /// over.
    at: usize,
    /// Since when it is its turn.
    since: Millis,
}

impl Coordinator {
    /// A coordinator that has not asked anything yet. The first input is [`Input::Tick`].
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let timing = Timing::new(plan.ttl_ms);
        let members: Vec<usize> = (0..plan.nodes.len()).collect();
        let need = plan.require.least(members.len());
        let nodes = members.iter().map(|_| Node::new(0)).collect();
        let said = Said::new(members.len());
        let phase = Self::first_phase(&plan, 0);
        Self {
            plan,
            timing,
            members,
            need,
            nodes,
            phase,
            token: None,
            least_token: Token(0),
            tokens_taken: 0,
            begun: None,
            wake_at: None,
            patient_until: 0,
            published: None,
            said,
        }
    }

    /// A coordinator that goes on where another one ended. `runs` says whether the command was
    /// started: if not, the request goes on where it waits, and a part that the other one may have confirmed
    /// is given back.
    #[must_use]
    pub fn take_over(plan: Plan, standing: &Standing, runs: bool) -> Self {
        let mut new = Self::new(plan);
        for part in &standing.parts {
            let is_local = new.is_local(part.node);
            let node = &mut new.nodes[part.node];
            node.lease = part.lease;
            node.sent = part.sent.filter(|_| runs);
            node.asked = part.asked.filter(|_| !is_local);
            node.hold = match part.lease {
                0 => Hold::Nothing,
                _ if node.asked.is_some() => Hold::Nothing,
                // No call finds out more about the hold of a process.
                _ if runs && is_local && part.sent.is_some() => Hold::Firm,
                _ => Hold::Unknown,
            };
        }
        if runs {
            new.members = standing.parts.iter().map(|part| part.node).collect();
            new.need = standing.need;
            new.token = standing.token;
            new.phase = Phase::Running;
        }
        new
    }

    /// Takes in what happened by `now`, and says what is to be done, in order. `now` never goes
    /// back.
    pub fn handle(&mut self, input: Input, now: Millis) -> Vec<Effect> {
        if matches!(self.phase, Phase::Over) {
            return Vec::new();
        }
        if self.wake_at.is_some_and(|at| now > at.saturating_add(LATE_MS)) {
            self.patient_until = now.saturating_add(LATE_MS);
        }
        let mut turn = Turn::new(now, self.patient_until);
        self.begin(now);
        self.hear(input, &mut turn);
        while self.advance(&mut turn) {}
        if !matches!(self.phase, Phase::Over) {
            self.keep_links(&mut turn);
            self.report(&mut turn);
            self.wake_at = turn.wake_at();
            self.wake_at.into_iter().for_each(|at| turn.carry_out(Effect::WakeAt(at)));
        }
        turn.into_effects()
    }

    /// What another coordinator must know to take over.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let part = |node: &usize| {
            let Node { lease, sent, asked, .. } = self.nodes[*node];
            Part { node: *node, lease, sent, asked }
        };
        let parts = self.members.iter().map(part).collect();
        Standing { token: self.token, need: self.need, parts }
    }

    /// Whether the request waits at a node.
    #[must_use]
    pub fn waits(&self) -> bool {
        let waits = |at: &usize| matches!(self.nodes[*at].hold, Hold::Queued);
        matches!(self.phase, Phase::Collecting(_)) && self.members.iter().any(waits)
    }

    /// Whether the request has the grant of a node while it waits at another. A request that has none,
    /// and is within no other run, keeps nobody waiting but those behind it.
    #[must_use]
    pub fn holds_while_it_waits(&self) -> bool {
        self.waits() && self.nodes.iter().any(Node::is_held)
    }

    fn begin(&mut self, now: Millis) {
        if self.begun.is_some() {
            return;
        }
        self.begun = Some(now);
        self.nodes.iter_mut().for_each(|node| node.link = link::Link::new(now));
        let patience_ms = self.patience_ms();
        if matches!(self.phase, Phase::Counting { .. } | Phase::Collecting(_)) {
            self.phase = Self::first_phase(&self.plan, now);
        } else if let Phase::Ending { until, .. } = &mut self.phase {
            *until = now.saturating_add(patience_ms);
        }
    }

    fn first_phase(plan: &Plan, now: Millis) -> Phase {
        match plan.require.counts_the_alive() {
            true => Phase::Counting { until: now + Timing::new(plan.ttl_ms).silence_ms },
            false => Phase::Collecting(Round { at: 0, since: now }),
        }
    }

    /// Decides what follows from what is known. Returns whether another phase has begun.
    fn advance(&mut self, turn: &mut Turn) -> bool {
        match self.phase.clone() {
            Phase::Counting { until } => self.count_the_alive(turn, until),
            Phase::Collecting(round) => self.collect(turn, round),
            Phase::Confirming { chosen } => self.confirm(turn, &chosen),
            Phase::Renewing => self.renew_parts(turn),
            Phase::Running => self.keep_running(turn),
            Phase::Ending { outcome, until } => self.finish(turn, outcome, until),
            Phase::Lost | Phase::Over => false,
        }
    }

    /// Opens the connections that are needed, and closes those that are not.
    fn keep_links(&mut self, turn: &mut Turn) {
        for at in 0..self.nodes.len() {
            let is_needed = self.needs_link(at);
            let node = &mut self.nodes[at];
            if is_needed && node.link.is_due(turn) {
                node.link.connect();
                turn.carry_out(Effect::Connect { node: at });
            } else if matches!(self.phase, Phase::Running) && !is_needed && !node.link.is_closed() {
                node.link.close(turn.now);
                turn.carry_out(Effect::Cancel { node: at });
            }
        }
    }

    fn needs_link(&self, at: usize) -> bool {
        let holds = self.nodes[at].hold != Hold::Nothing;
        match self.phase {
            Phase::Counting { .. } | Phase::Collecting(_) | Phase::Confirming { .. } => true,
            Phase::Running => holds || self.plan.require.has_spares() && self.members.contains(&at),
            Phase::Renewing | Phase::Ending { .. } => holds,
            Phase::Lost | Phase::Over => false,
        }
    }

    /// Whether the node's part is the hold of a process of this machine.
    fn is_local(&self, at: usize) -> bool {
        self.plan.local == Some(at)
    }

    /// Releases what a node may hold, if it can be reached.
    fn release(&mut self, turn: &mut Turn, at: usize) {
        let node = &mut self.nodes[at];
        node.sent = None;
        node.renewing = None;
        node.hold = Hold::Unknown;
        if node.link.is_open() {
            node.hold = Hold::Releasing { since: turn.now };
            turn.call(Effect::Release { node: at, lease: node.lease }, self.timing.silence_ms);
        }
    }

    /// Withdraws a request, or gives a collecting grant back.
    fn cancel(&mut self, turn: &mut Turn, at: usize) {
        if self.is_local(at) && matches!(self.nodes[at].hold, Hold::Collecting { .. }) {
            self.nodes[at].asked = None;
            return self.release(turn, at);
        }
        let node = &mut self.nodes[at];
        node.hold = Hold::Nothing;
        node.link.close(turn.now);
        turn.carry_out(Effect::Cancel { node: at });
    }

    /// Connects anew to a node that has not answered a call since `since`, if that was long ago.
    /// Returns whether it was.
    fn suspect(&mut self, turn: &mut Turn, at: usize, since: Millis, silence_ms: Millis) -> bool {
        let is_silent = turn.is_silent(since, silence_ms);
        if is_silent {
            let is_local = self.is_local(at);
            self.nodes[at].suspect(turn.now, since, is_local);
        }
        is_silent
    }

    /// Begins to give everything back.
    fn end(&mut self, turn: &Turn, outcome: Outcome) {
        self.phase = Phase::Ending { outcome, until: turn.now + self.timing.silence_ms };
    }
}
