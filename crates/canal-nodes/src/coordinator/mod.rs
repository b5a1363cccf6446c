//! The coordinator of one request over nodes.
//!
//! Each input first updates the state of a node (`hearing`). The phase of the request then decides
//! what to do about the state of all nodes (`collecting`, `running`). So the result does not depend
//! on the order in which two nodes answer.
//!
//! Invariant: a lease counts towards the deadline only from the time before the coordinator sent
//! the call that the node has answered.

mod holding;
mod node;
mod progress;
mod quorum;
mod replies;
#[cfg(test)]
mod tests;

use node::{Hold, Node, Turn};
use progress::Said;

use super::plan::{PATIENCE_MS, SILENCE_MS};
use super::{Call, Checkpoint, Effect, Input, Millis, Outcome, Part, Plan, Require, Timing};
use canal_core::Token;

/// A coordinator that is called this many milliseconds later than it wanted was stopped. For the
/// same time it then reads the messages that arrived meanwhile, before it counts any node as
/// silent.
const LATE_MS: Millis = 1_000;

/// The coordinator of one request over nodes.
#[derive(Debug)]
pub struct Coordinator {
    plan: Plan,
    timing: Timing,
    /// The nodes that count, ascending.
    members: Vec<usize>,
    /// The number of members that must hold the lock.
    need: usize,
    /// All nodes of the plan.
    nodes: Vec<Node>,
    phase: Phase,
    /// The token with which leases are confirmed.
    token: Option<Token>,
    /// A lower bound of the next token: smaller ones were already used.
    least_token: Token,
    /// How many times a node had already used the token that it should confirm.
    tokens_taken: u32,
    /// When it was made.
    begun: Millis,
    /// The time at which the coordinator wants to be called again.
    wake_at: Option<Millis>,
    /// No node counts as silent before this time.
    patient_until: Millis,
    /// The last published time until which the command may run.
    published: Option<Millis>,
    said: Said,
}

/// The phase of the request.
#[derive(Clone, Debug)]
enum Phase {
    /// Waits to see which nodes answer; used only if no others count.
    Counting { until: Millis },
    /// Asks the nodes.
    Collecting(Round),
    /// Enough nodes granted the request; these are asked to confirm.
    Confirming { chosen: Vec<usize> },
    /// Renews a lease to find out what is left of it.
    Renewing,
    /// The command may run.
    Running,
    /// Too few nodes hold the lock: the command is being killed.
    Lost,
    /// Releases everything.
    Ending { outcome: Outcome, until: Millis },
    /// The outcome was reported.
    Over,
}

/// One attempt to get enough nodes.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// The index, into the members, of the node whose turn it is. Nodes before it have granted, or
    /// were passed over.
    at: usize,
    /// The time since which it is this node's turn.
    since: Millis,
}

impl Coordinator {
    /// A coordinator that has asked no node yet, at `now`. Its first input is [`Input::Tick`].
    #[must_use]
    pub fn new(plan: Plan, now: Millis) -> Self {
        let members: Vec<usize> = (0..plan.nodes.len()).collect();
        Self {
            timing: Timing::new(plan.ttl_ms),
            need: plan.require.least(members.len()),
            nodes: members.iter().map(|_| Node::new(now)).collect(),
            members,
            phase: match plan.require.counts_the_alive() {
                true => Phase::Counting { until: now + SILENCE_MS },
                false => Phase::Collecting(Round { at: 0, since: now }),
            },
            plan,
            token: None,
            least_token: Token(0),
            tokens_taken: 0,
            begun: now,
            wake_at: None,
            patient_until: 0,
            published: None,
            said: Said::default(),
        }
    }

    /// A coordinator that continues after another one ended. `runs` tells whether the command was
    /// started. If it was not, the request continues where it waits, and the coordinator releases
    /// each part that the other one may have confirmed.
    #[must_use]
    pub fn take_over(plan: Plan, checkpoint: &Checkpoint, runs: bool, now: Millis) -> Self {
        let mut new = Self::new(plan, now);
        for part in &checkpoint.parts {
            let node = &mut new.nodes[part.node];
            node.lease = part.lease;
            node.sent = part.sent.filter(|_| runs);
            node.asked = part.asked;
            if part.lease > 0 && part.asked.is_none() {
                node.hold = Hold::Unknown;
            }
        }
        if runs {
            new.members = checkpoint.parts.iter().map(|part| part.node).collect();
            new.need = checkpoint.need;
            new.token = checkpoint.token;
            new.phase = Phase::Running;
        }
        new
    }

    /// A coordinator that renews each part of a lease. [`Effect::Start`] means that enough nodes
    /// have renewed theirs; the coordinator then continues to renew. [`Outcome::Lost`] means that
    /// too few nodes have a part left; the coordinator releases the rest. [`Outcome::Failed`] means
    /// that too few nodes answer; the parts stay as they are. It never asks a node for a new part.
    #[must_use]
    pub fn renew_lease(plan: Plan, checkpoint: &Checkpoint, now: Millis) -> Self {
        let mut new = Self::of_lease(plan, checkpoint, now);
        new.phase = Phase::Renewing;
        new
    }

    /// A coordinator that releases a lease and ends.
    #[must_use]
    pub fn give_back_lease(plan: Plan, checkpoint: &Checkpoint, now: Millis) -> Self {
        let mut new = Self::of_lease(plan, checkpoint, now);
        let until = now.saturating_add(PATIENCE_MS);
        new.phase = Phase::Ending { outcome: Outcome::GivenBack(Vec::new()), until };
        new
    }

    fn of_lease(plan: Plan, checkpoint: &Checkpoint, now: Millis) -> Self {
        // All other requirements might ask for further parts.
        let plan = Plan { require: Require::All, ..plan };
        let mut new = Self::take_over(plan, checkpoint, true, now);
        new.nodes.iter_mut().for_each(|node| node.sent = None);
        new
    }

    /// Handles an input that happened by `now`, and returns the effects in their order. `now` never
    /// decreases.
    pub fn handle(&mut self, input: Input, now: Millis) -> Vec<Effect> {
        if matches!(self.phase, Phase::Over) {
            return Vec::new();
        }
        if self.wake_at.is_some_and(|at| now > at.saturating_add(LATE_MS)) {
            self.patient_until = now.saturating_add(LATE_MS);
        }
        let mut turn = Turn::new(now, self.patient_until);
        self.hear(input, &mut turn);
        while self.advance(&mut turn) {}
        if !matches!(self.phase, Phase::Over) {
            self.keep_links(&mut turn);
            self.report(&mut turn);
            self.wake_at = turn.wake_at();
            self.wake_at.into_iter().for_each(|at| turn.carry_out(Effect::WakeAt(at)));
        }
        turn.effects
    }

    /// The state that another coordinator needs to take over.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        let part = |node: &usize| {
            let Node { lease, sent, asked, .. } = self.nodes[*node];
            Part { node: *node, lease, sent, asked }
        };
        let parts = self.members.iter().map(part).collect();
        Checkpoint { token: self.token, need: self.need, parts }
    }

    /// Decides the next step from the known state. Returns whether another phase has begun.
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

    /// Opens the connections that are needed, and closes the others.
    fn keep_links(&mut self, turn: &mut Turn) {
        for at in 0..self.nodes.len() {
            let is_needed = self.needs_link(at);
            let node = &mut self.nodes[at];
            if is_needed && node.connects(turn) {
                turn.carry_out(Effect::Node(at, Call::Connect));
            } else if matches!(self.phase, Phase::Running) && !is_needed && !node.is_closed() {
                node.close(turn.now);
                turn.carry_out(Effect::Node(at, Call::Cancel));
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
}
