//! The coordinator of one request over nodes.
//!
//! Each input first updates the state of a node (`replies`). The phase of the request then decides
//! what to do about the state of all nodes (`quorum_requests`, `renewal`). So the result
//! does not depend on the order in which two nodes answer.
//!
//! Invariant: a lease counts towards the deadline only from the time before the coordinator sent
//! the call that the node has answered.

mod node_state;
mod progress;
mod quorum_requests;
mod renewal;
mod replies;
#[cfg(test)]
mod tests;

use node_state::{Hold, Node, PATIENCE_MS, SILENCE_MS, Turn};

use super::{Call, Checkpoint, Effect, Input, Millis, Outcome, Part, Plan, Require, Task};
use canal_core::Token;

pub use node_state::Timing;

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
    /// The last report: how many nodes hold the lock, and at which nodes the request waits.
    said_held: (usize, Vec<usize>),
    /// How many nodes answer, if they were reported as too few.
    said_too_few: Option<usize>,
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
            said_held: Default::default(),
            said_too_few: None,
        }
    }

    /// A coordinator that continues with the parts that another one left.
    pub fn take_over(plan: Plan, left: &Checkpoint, task: Task, now: Millis) -> Self {
        let require = match task {
            Task::Wait | Task::Run => plan.require,
            // All other requirements might ask for further parts.
            Task::Renew | Task::GiveBack => Require::All,
        };
        let mut new = Self::new(Plan { require, ..plan }, now);
        for part in &left.parts {
            let node = &mut new.nodes[part.node];
            (node.lease, node.asked) = (part.lease, part.asked);
            node.sent = part.sent.filter(|_| task == Task::Run);
            if part.lease > 0 && part.asked.is_none() {
                node.hold = Hold::Unknown;
            }
        }
        new.phase = match task {
            Task::Wait => return new,
            Task::Run => Phase::Running,
            Task::Renew => Phase::Renewing,
            Task::GiveBack => {
                let until = now.saturating_add(PATIENCE_MS);
                Phase::Ending { outcome: Outcome::GivenBack(Vec::new()), until }
            }
        };
        new.members = left.parts.iter().map(|part| part.node).collect();
        (new.need, new.token) = (left.need, left.token);
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
        let (patient_until, effects, wake_at) = (self.patient_until, Vec::new(), None);
        let mut turn = Turn { now, patient_until, effects, wake_at };
        self.hear(input, &mut turn);
        while self.advance(&mut turn) {}
        if !matches!(self.phase, Phase::Over) {
            self.keep_links(&mut turn);
            self.report(&mut turn);
            self.wake_at = turn.wake_at.filter(|at| *at < Millis::MAX);
            turn.effects.extend(self.wake_at.map(Effect::WakeAt));
        }
        turn.effects
    }

    /// The state that another coordinator needs to take over.
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
            let holds = self.nodes[at].hold != Hold::Nothing;
            let is_needed = match self.phase {
                Phase::Counting { .. } | Phase::Collecting(_) | Phase::Confirming { .. } => true,
                Phase::Running => {
                    holds || self.plan.require.has_spares() && self.members.contains(&at)
                }
                Phase::Renewing | Phase::Ending { .. } => holds,
                Phase::Lost | Phase::Over => false,
            };
            let node = &mut self.nodes[at];
            if is_needed && node.connects(turn) {
                turn.effects.push(Effect::Node(at, Call::Connect));
            } else if matches!(self.phase, Phase::Running) && !is_needed && !node.is_closed() {
                node.close(turn.now);
                turn.effects.push(Effect::Node(at, Call::Cancel));
            }
        }
    }
}
