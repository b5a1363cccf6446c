//! Reports each change once.

use super::node_state::{Hold, SILENCE_MS, Turn};
use super::quorum_requests::PASS_OVER_MS;
use super::{Coordinator, Phase};
use crate::{Change, Effect, Held, Millis};

impl Coordinator {
    pub(super) fn report(&mut self, turn: &mut Turn) {
        if matches!(self.phase, Phase::Lost | Phase::Ending { .. } | Phase::Over) {
            return;
        }
        for at in self.members.clone() {
            self.report_link(turn, at);
        }
        self.report_new(turn);
        let waits = |at: &usize| matches!(self.nodes[*at].hold, Hold::Queued);
        let held = self.held();
        let now = (held.held, self.members.iter().copied().filter(waits).collect());
        if self.said_held != now {
            self.said_held = now.clone();
            turn.effects.push(Effect::Say(Change::Held(held, now.1)));
        }
        let asks = matches!(self.phase, Phase::Collecting(_) | Phase::Counting { .. });
        // Nodes that do not grant yet still answer.
        let answers = |at: &&usize| {
            let node = &self.nodes[**at];
            node.unfit.is_none() && node.may_answer(turn, SILENCE_MS)
        };
        let answering = self.members.iter().filter(answers).count();
        let too_few = (asks && answering < self.need).then_some(answering);
        if self.said_too_few != too_few {
            self.said_too_few = too_few;
            let say = |held| Effect::Say(Change::TooFew(Held { held, need: self.need }));
            turn.effects.extend(too_few.map(say));
        }
    }

    /// Reports together all nodes that have new state, once each node has answered or is silent.
    fn report_new(&mut self, turn: &mut Turn) {
        let is_settled = self.members.iter().all(|at| {
            let node = &self.nodes[*at];
            node.is_open() || !node.may_answer(turn, SILENCE_MS)
        });
        let (mut new, mut is_news) = (Vec::new(), false);
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let is_new = !turn.is_past(node.grants_from);
            node.said_not_yet &= is_new;
            is_news |= is_new && !node.said_not_yet;
            new.extend(is_new.then_some(at));
        }
        let until = new.iter().map(|at| self.nodes[*at].grants_from).max();
        if let Some(until) = until.filter(|_| is_settled && is_news) {
            new.iter().for_each(|at| self.nodes[*at].said_not_yet = true);
            turn.effects.push(Effect::Say(Change::NotYet(new, until)));
        }
    }

    fn report_link(&mut self, turn: &mut Turn, at: usize) {
        let silence_ms = match self.phase {
            Phase::Running => self.timing.renewal_silence_ms,
            // The request passed over it and waits at a later node.
            Phase::Collecting(round) if self.waits() && self.members[..round.at].contains(&at) => {
                PASS_OVER_MS
            }
            _ => SILENCE_MS,
        };
        let Some(since) = self.nodes[at].silent_since else {
            if self.nodes[at].said_away.take().is_some() {
                turn.effects.push(Effect::Say(Change::Back(at, self.held())));
            }
            return;
        };
        if self.nodes[at].may_answer(turn, silence_ms) {
            return;
        }
        let why = self.nodes[at].obstacle().what;
        if self.nodes[at].said_away.as_ref() != Some(&why) {
            self.nodes[at].said_away = Some(why.clone());
            let (held, stops_at) = (self.held(), self.stops_at());
            let change = Change::Away { node: at, since, why, held, stops_at };
            turn.effects.push(Effect::Say(change));
        }
    }

    /// How many nodes have granted the request.
    pub(super) fn held(&self) -> Held {
        let held = match self.phase {
            Phase::Running => self.sure_nodes().count(),
            _ => self.members.iter().filter(|at| self.nodes[**at].is_held()).count(),
        };
        Held { held, need: self.need }
    }

    /// When the running command stops if the silent nodes stay silent.
    fn stops_at(&self) -> Option<Millis> {
        let answers = |at: &usize| self.nodes[*at].is_open();
        let answering = self.sure_nodes().filter(answers).count();
        self.published.filter(|_| matches!(self.phase, Phase::Running) && answering < self.need)
    }
}
