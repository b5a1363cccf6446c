//! The network between a host and the engine.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::engine::{Answer, Call, Outage};

/// The messages in flight between one client and the engine.
#[derive(Debug, Default)]
pub struct Link {
    /// Whether messages get through.
    pub cut: bool,
    /// Whether the client was notified of the cut.
    told_away: bool,
    notice_ms: Option<u64>,
    /// Messages of an earlier connection get no answer.
    pub connection: u64,
    number: u64,
    calls: BTreeMap<(u64, u64), (u64, Call)>,
    answers: BTreeMap<(u64, u64), Answer>,
    /// When the last of the answers that come in order arrives.
    stream_ms: u64,
    pub slow_ms: u64,
    /// The most by which answers take longer than calls.
    pub slow_answers_ms: u64,
    /// Calls made before this time are sent only then.
    pub calls_stall_until: u64,
    /// Answers made before this time are sent only then.
    pub answers_stall_until: u64,
    /// The number of answers in a thousand that arrive twice.
    pub repeat: u32,
}

impl Link {
    pub fn new(slow_ms: u64) -> Self {
        Self { slow_ms, ..Self::default() }
    }

    fn place(&mut self, at_ms: u64) -> (u64, u64) {
        self.number += 1;
        (at_ms, self.number)
    }

    pub fn send(&mut self, rng: &mut Rng, now_ms: u64, call: Call) {
        if self.cut || self.told_away {
            return;
        }
        let now_ms = now_ms.max(self.calls_stall_until);
        let at = self.place(now_ms + rng.u64(0..=self.slow_ms));
        // A connection carries each of these once, and a host sends one at a time.
        let is_once = matches!(call, Call::Attend { .. });
        let again = rng.u32(0..1000) < self.repeat && !is_once;
        if again {
            let later = self.place(now_ms + rng.u64(0..=self.slow_ms * 5));
            self.calls.insert(later, (self.connection, call.clone()));
        }
        self.calls.insert(at, (self.connection, call));
    }

    /// The next call that has arrived, and its connection.
    pub fn arrived(&mut self, now_ms: u64) -> Option<(u64, Call)> {
        let entry = self.calls.first_entry().filter(|entry| entry.key().0 <= now_ms)?;
        Some(entry.remove())
    }

    pub fn answer(&mut self, rng: &mut Rng, now_ms: u64, answer: Answer) {
        let slow_ms = self.slow_ms + self.slow_answers_ms;
        let mut at_ms = now_ms.max(self.answers_stall_until) + rng.u64(0..=slow_ms);
        let in_order = matches!(
            answer,
            Answer::Loaded { .. }
                | Answer::Batches(_)
                | Answer::Rewritten
                | Answer::Compacted
                | Answer::Attends { .. }
        );
        if in_order {
            at_ms = at_ms.max(self.stream_ms);
            self.stream_ms = at_ms;
        }
        let at = self.place(at_ms);
        let is_once = matches!(answer, Answer::Attends { .. });
        if rng.u32(0..1000) < self.repeat && !is_once {
            let later = self.place(if in_order { at_ms } else { at_ms + rng.u64(0..50) });
            self.answers.insert(later, answer.clone());
        }
        self.answers.insert(at, answer);
    }

    pub fn received(&mut self, now_ms: u64) -> Option<Answer> {
        if let Some(entry) = self.answers.first_entry().filter(|entry| entry.key().0 <= now_ms) {
            return Some(entry.remove());
        }
        if self.cut && self.notice_ms.is_some_and(|at| at <= now_ms) && !self.told_away {
            self.told_away = true;
            // A wrong password is equivalent to a cut.
            let refused = self.connection.is_multiple_of(2);
            return Some(Answer::Away(Outage { refused, ..Outage::unreachable("cut") }));
        }
        if !self.cut && self.told_away {
            self.told_away = false;
            return Some(Answer::Back);
        }
        None
    }

    /// Cuts the network: no message gets through from now on. Earlier calls may still arrive, even
    /// much later.
    pub fn cut(&mut self, rng: &mut Rng, now_ms: u64) {
        if self.cut {
            return;
        }
        self.cut = true;
        self.notice_ms = Some(now_ms + rng.u64(0..150));
        // Arrived messages are still read, even much later.
        self.connection += 1;
        self.answers.retain(|(at_ms, _), _| *at_ms <= now_ms);
        self.stream_ms = 0;
        let calls = std::mem::take(&mut self.calls);
        for (_, call) in calls {
            if rng.bool() {
                let at = self.place(now_ms + rng.u64(0..3000));
                self.calls.insert(at, call);
            }
        }
    }

    /// Restores the network: both directions carry messages again.
    pub fn flow(&mut self, now_ms: u64) {
        self.calls_stall_until = self.calls_stall_until.min(now_ms);
        self.answers_stall_until = self.answers_stall_until.min(now_ms);
    }

    pub fn forget_calls(&mut self) {
        self.calls.clear();
    }

    pub fn heal(&mut self, now_ms: u64) {
        if self.cut && self.told_away {
            self.cut = false;
        } else if self.cut {
            // It learns of the cut first.
            self.notice_ms = Some(now_ms);
        }
    }

    /// A new daemon connects; the old one's calls may still arrive.
    pub fn reset(&mut self) {
        self.connection += 1;
        self.answers.clear();
        self.stream_ms = 0;
        self.told_away = false;
        if self.cut {
            self.notice_ms = Some(0);
        }
    }
}
