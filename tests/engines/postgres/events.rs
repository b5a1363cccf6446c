//! A host, and the engine's reports that are not answers.

use canal::log::engine::{Answer, Call};

use crate::engine_contract::peer::Peer;

/// Events that a host learns about the server.
pub(crate) trait EngineEvents {
    /// Waits until the engine is away. Returns the reason.
    fn away(&mut self) -> String;

    /// Waits until the engine is back.
    fn back(&mut self);

    /// Waits until the engine reports that it is unusable. Returns the reason and the hint.
    fn unable(&mut self) -> (String, String);

    /// Listens or rests, and reads everything that is in the log.
    fn attend(&mut self, listens: bool);

    /// The answers that the host has not waited for.
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

    fn attend(&mut self, listens: bool) {
        self.call(Call::Attend { listens });
        let told = self.until("Attends", |answer| match answer {
            Answer::Attends { listens } => Some(*listens),
            _ => None,
        });
        assert_eq!(told, listens);
    }

    fn kept(&self) -> impl Iterator<Item = &Answer> {
        self.kept.iter()
    }
}
