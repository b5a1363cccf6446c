//! Reports each change once.

use super::node::Hold;
use super::node::Turn;
use super::{Coordinator, Phase};
use crate::{Change, Effect, Millis};

/// The state in the last reports.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// Per node: why it is away, if that was reported.
    away: Vec<Option<String>>,
    /// Per node: whether the report named it as not granting yet.
    not_yet: Vec<bool>,
    /// How many nodes hold the lock, and at which nodes the request waits.
    held: (usize, Vec<usize>),
    /// How many nodes answer, if they were reported as too few.
    too_few: Option<usize>,
}

impl Said {
    pub(super) fn new(nodes: usize) -> Self {
        let (away, not_yet) = (vec![None; nodes], vec![false; nodes]);
        Self { away, not_yet, held: (0, Vec::new()), too_few: None }
    }
}

impl Coordinator {
    pub(super) fn report(&mut self, turn: &mut Turn) {
        if matches!(self.phase, Phase::Lost | Phase::Ending { .. } | Phase::Over) {
            return;
        }
        for at in self.members.clone() {
            self.report_link(turn, at);
        }
        self.report_new(turn);
        self.report_held(turn);
        self.report_too_few(turn);
    }

    /// Reports together all nodes that have new state, once each node has answered or is silent.
    fn report_new(&mut self, turn: &mut Turn) {
        let is_new: Vec<bool> =
            self.nodes.iter().map(|node| !turn.is_past(node.grants_from)).collect();
        let silence_ms = self.timing.silence_ms;
        let is_settled = self.members.iter().all(|at| {
            let link = &self.nodes[*at].link;
            link.is_open() || !link.may_answer(turn, silence_ms)
        });
        let said = &mut self.said.not_yet;
        said.iter_mut().zip(&is_new).for_each(|(said, is_new)| *said &= *is_new);
        let nodes: Vec<usize> = (0..is_new.len()).filter(|at| is_new[*at]).collect();
        let until = nodes.iter().map(|at| self.nodes[*at].grants_from).max();
        let is_news = nodes.iter().any(|at| !said[*at]);
        if is_settled
            && is_news
            && let Some(until) = until
        {
            nodes.iter().for_each(|at| said[*at] = true);
            turn.carry_out(Effect::Say(Change::NotYet { nodes, until }));
        }
    }

    fn report_link(&mut self, turn: &mut Turn, at: usize) {
        let (held, need) = (self.held(), self.need);
        let silence_ms = match self.phase {
            Phase::Running => self.timing.renewal_silence_ms,
            // The request passed over it and waits at a later node.
            Phase::Collecting(round) if self.waits() && self.members[..round.at].contains(&at) => {
                self.timing.pass_over_ms
            }
            _ => self.timing.silence_ms,
        };
        let link = &self.nodes[at].link;
        let Some(since) = link.silent_since() else {
            if self.said.away[at].take().is_some() {
                turn.carry_out(Effect::Say(Change::Back { node: at, held, need }));
            }
            return;
        };
        if link.may_answer(turn, silence_ms) {
            return;
        }
        let why = self.nodes[at].obstacle();
        if self.said.away[at].as_ref() != Some(&why) {
            self.said.away[at] = Some(why.clone());
            let stops_at = self.stops_at();
            let change = Change::Away { node: at, since, why, held, need, stops_at };
            turn.carry_out(Effect::Say(change));
        }
    }

    fn report_held(&mut self, turn: &mut Turn) {
        let waits = |at: &usize| matches!(self.nodes[*at].hold, Hold::Queued);
        let waits_for: Vec<usize> = self.members.iter().copied().filter(waits).collect();
        let now = (self.held(), waits_for);
        if self.said.held != now {
            self.said.held = now.clone();
            let (held, waits_for) = now;
            turn.carry_out(Effect::Say(Change::Held { held, need: self.need, waits_for }));
        }
    }

    fn report_too_few(&mut self, turn: &mut Turn) {
        let asks = matches!(self.phase, Phase::Collecting(_) | Phase::Counting { .. });
        // Nodes that do not grant yet still answer.
        let silence_ms = self.timing.silence_ms;
        let answers = |at: &&usize| {
            let node = &self.nodes[**at];
            node.unfit.is_none() && node.link.may_answer(turn, silence_ms)
        };
        let answering = self.members.iter().filter(answers).count();
        let too_few = (asks && answering < self.need).then_some(answering);
        if self.said.too_few != too_few {
            self.said.too_few = too_few;
            if let Some(answering) = too_few {
                turn.carry_out(Effect::Say(Change::TooFew { answering, need: self.need }));
            }
        }
    }

    /// How many nodes have granted the request.
    fn held(&self) -> usize {
        match self.phase {
            Phase::Running => self.sure_nodes().count(),
            _ => self.members.iter().filter(|at| self.nodes[**at].is_held()).count(),
        }
    }

    /// When the running command stops if the silent nodes stay silent.
    fn stops_at(&self) -> Option<Millis> {
        let answers = |at: &usize| self.nodes[*at].link.is_open();
        let answering = self.sure_nodes().filter(answers).count();
        self.published.filter(|_| matches!(self.phase, Phase::Running) && answering < self.need)
    }
}
