//! A host and its engine's comings and goings.

use std::time::Duration;

use canal::log::engine::{Answer, Call};

use crate::engine_contract::peer::Peer;

/// What a host hears of the server, beside answers.
pub(crate) trait Hears {
    /// Waits until the engine is away, and gives the words for it.
    fn away(&mut self) -> String;

    /// Waits until the engine is back.
    fn back(&mut self);

    /// Waits until the engine says that it cannot be used: why, and what to do.
    fn unable(&mut self) -> (String, String);

    /// Asks until the engine is back; that it still cannot be used is no answer.
    fn renew_until_back(&mut self);

    /// Answers that nobody waited for.
    fn kept(&self) -> impl Iterator<Item = &Answer>;
}

impl Hears for Peer {
    fn away(&mut self) -> String {
        self.until("Away", |answer| match answer {
            Answer::Away { why } => Some(why.clone()),
            _ => None,
        })
    }

    fn back(&mut self) {
        self.until("Back", |answer| matches!(answer, Answer::Back).then_some(()));
    }

    fn unable(&mut self) -> (String, String) {
        self.until("Unable", |answer| match answer {
            Answer::Unable { why, hint } => Some((why.clone(), hint.clone().unwrap_or_default())),
            _ => None,
        })
    }

    fn renew_until_back(&mut self) {
        let mut asked = 0;
        loop {
            self.call(Call::Renew { host: self.host, asked_at: 0 });
            match self.poll(Duration::from_millis(100)) {
                Some(Answer::Back) => return,
                Some(Answer::Unable { .. }) | None => asked += 1,
                other => panic!("{other:?}"),
            }
            assert!(asked < 600, "the engine does not come back");
        }
    }

    fn kept(&self) -> impl Iterator<Item = &Answer> {
        self.kept.iter()
    }
}
