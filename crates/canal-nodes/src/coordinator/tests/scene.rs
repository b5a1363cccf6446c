//! A coordinator, with short words for its inputs and effects.

use crate::{
    Asking, Call, Change, Coordinator, Effect, Event, Input, Millis, Outcome, Plan, Refusal,
    Require,
};
use canal_core::{NodeId, Token};
use canal_protocol::NodeFailure;

/// A coordinator and the time.
pub(super) struct Scene {
    pub(super) coordinator: Coordinator,
    pub(super) now: Millis,
    /// The changes that it reported.
    pub(super) said: Vec<Change>,
    /// The time at which it wants to be called again.
    pub(super) wake_at: Option<Millis>,
}

const TTL_MS: u64 = 60_000;

pub(super) fn plan(nodes: u128, require: Require) -> Plan {
    let nodes = (0..nodes).map(NodeId).collect();
    Plan { nodes, require, ttl_ms: TTL_MS, wait_ms: None, asked_at: 1_000 }
}

impl Scene {
    pub(super) fn with(coordinator: Coordinator) -> Self {
        Self { coordinator, now: 1_000, said: Vec::new(), wake_at: None }
    }

    /// A coordinator that has reached all nodes, and its effects since.
    pub(super) fn reached(plan: Plan) -> (Self, Vec<String>) {
        Self::reached_at(plan, 1_000)
    }

    fn reached_at(plan: Plan, now: Millis) -> (Self, Vec<String>) {
        let count = plan.nodes.len();
        let mut scene = Self { now, ..Self::with(Coordinator::new(plan, now)) };
        let connected: Vec<String> = (0..count).map(|node| format!("connect {node}")).collect();
        assert_eq!(scene.hear(Input::Tick), connected);
        let done = (0..count)
            .flat_map(|node| scene.hear(Input::Node(node, Event::Reached(None))))
            .collect();
        (scene, done)
    }

    /// A coordinator whose command runs on the nodes that granted first, confirmed at 1 s.
    pub(super) fn running(plan: Plan) -> Self {
        let need = plan.require.least(plan.nodes.len());
        let has_spares = plan.require == Require::Majority;
        let (mut scene, _) = Self::reached_at(plan, if has_spares { 0 } else { 1_000 });
        (0..need).for_each(|node| drop(scene.hear(granted(node, 5))));
        if has_spares {
            // The other nodes raise no objection to the list for a second.
            scene.pass(1_000);
        }
        let mut done = Vec::new();
        (0..need).for_each(|node| done = scene.hear(confirmed(node, 1_000)));
        assert!(done.iter().any(|done| done.starts_with("start")), "{done:?}");
        scene
    }

    pub(super) fn hear(&mut self, input: Input) -> Vec<String> {
        let effects = self.coordinator.handle(input, self.now);
        self.wake_at = None;
        let mut done = Vec::new();
        for effect in effects {
            match effect {
                Effect::Say(change) => self.said.push(change),
                Effect::WakeAt(at) => self.wake_at = Some(at),
                other => done.push(words(&other)),
            }
        }
        done
    }

    /// Advances time in the steps that the coordinator asks for.
    pub(super) fn pass(&mut self, ms: Millis) -> Vec<String> {
        let until = self.now + ms;
        let mut done = Vec::new();
        while let Some(at) = self.wake_at.filter(|at| *at <= until) {
            assert!(at > self.now, "it asks to be called at once, again and again");
            self.now = at;
            done.extend(self.hear(Input::Tick));
        }
        self.now = until;
        done
    }
}

fn words(effect: &Effect) -> String {
    match effect {
        Effect::Node(node, Call::Connect) => format!("connect {node}"),
        Effect::Node(node, Call::Ask(lease, Asking { no_wait, spare })) => {
            let how = match (no_wait, spare) {
                (false, false) => "",
                (true, false) => " now",
                (_, true) => " spare",
            };
            format!("ask {node} #{lease}{how}")
        }
        Effect::Node(node, Call::Cancel) => format!("cancel {node}"),
        Effect::Node(node, Call::ConfirmAt(lease, token)) => {
            format!("confirm {node} #{lease} at {token}")
        }
        Effect::Node(node, Call::Renew(lease)) => format!("renew {node} #{lease}"),
        Effect::Node(node, Call::Release(lease)) => format!("release {node} #{lease}"),
        Effect::Start { token, nodes, deadline } => {
            let token = token.map_or("-".to_owned(), |token| token.to_string());
            format!("start {token} {nodes:?} until {}", deadline.kill_at)
        }
        Effect::Deadline(deadline) => format!("deadline {}", deadline.kill_at),
        Effect::KillNow => "kill".to_owned(),
        Effect::End(outcome) => ending(outcome),
        Effect::Say(_) | Effect::WakeAt(_) => unreachable!(),
    }
}

fn ending(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Refused { node, refusal, silent, .. } => {
            let silent = silent.iter().map(|node| format!(", {node} is silent"));
            format!("refused {node:?} {refusal:?}{}", silent.collect::<String>())
        }
        Outcome::Failed(nodes) => {
            let nodes = nodes.iter().map(|(node, why)| format!("{node}: {why}"));
            format!("failed {}", nodes.collect::<Vec<_>>().join(", "))
        }
        Outcome::Lost(nodes) => format!("lost {nodes:?}"),
        Outcome::GivenBack(left) => format!("given back {left:?}"),
    }
}

pub(super) fn granted(node: usize, token: u64) -> Input {
    Input::Node(node, Event::Granted(Token(token)))
}

pub(super) fn confirmed(node: usize, sent: Millis) -> Input {
    Input::Node(node, Event::Confirmed(sent))
}

pub(super) fn refused(node: usize, refusal: Refusal) -> Input {
    Input::Node(node, Event::Refused(refusal, NodeFailure::passing("no")))
}

pub(super) fn away(node: usize) -> Input {
    Input::Node(node, Event::Away(NodeFailure::passing("timed out")))
}

pub(super) fn never(node: usize) -> Input {
    Input::Node(node, Event::Away(NodeFailure::permanent("no such host")))
}
