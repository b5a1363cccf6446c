//! A host and its engine's comings and goings.

use canal::log::engine::Answer;

use crate::engine_contract::peer::Peer;

/// What a host hears of the server, beside answers.
pub(crate) trait EngineEvents {
    /// Waits until the engine is away, and gives the words for it.
    fn away(&mut self) -> String;

    /// Waits until the engine is back.
    fn back(&mut self);

    /// Waits until the engine says that it cannot be used: why, and what to do.
    fn unable(&mut self) -> (String, String);

    /// Answers that nobody waited for.
    fn kept(&self) -> impl Iterator<Item = &Answer>;
}

impl EngineEvents for Peer {
    fn away(&mut self) -> String {
        self.until("Away", |answer| match answer {
            Answer::Away(outage) => Some(outage.why.clone()),
            _ => None,
        })
    }

    fn back(&mut self) {
        self.until("Back", |answer| matches!(answer, Answer::Back).then_some(()));
    }

    fn unable(&mut self) -> (String, String) {
        self.until("a refusal", |answer| match answer {
            Answer::Away(it) if it.refused => {
                Some((it.why.clone(), it.hint.clone().unwrap_or_default()))
            }
            _ => None,
        })
    }

    fn kept(&self) -> impl Iterator<Item = &Answer> {
        self.kept.iter()
    }
}
