//! When a request that waits looks for deadlocks over nodes, and when it gives way.
//!
//! A *look* is two readings of all nodes that can be asked, the second of which begins after the last
//! answer of the first. For one reading, all are asked again and again until their answers name no run
//! and no frame that they were not asked about.
//!
//! Invariant: a request gives way only while it waits, and only over a deadlock that one look has shown
//! whole. A node that did not answer in time, or not at all, counts as going on.

use std::collections::BTreeSet;

use super::find;
use super::name::RequestName;
use super::reading::{Reading, named};
use super::ring::{Deadlock, Way};
use crate::core::{FrameId, NodeId, RunId};
use crate::nodes::Millis;

/// How long a request waits before it looks.
const LOOK_AFTER_MS: Millis = 1_000;

/// How long after a look the next one begins.
const LOOK_EVERY_MS: Millis = 5_000;

/// The same after a look that has shown a deadlock in which it is another one's turn to give way. That one
/// looks at least once meanwhile, however the two began.
const TURN_MS: Millis = 2 * LOOK_EVERY_MS;

/// How long a node that was asked may take to answer.
const ANSWER_MS: Millis = 5_000;

/// How often the nodes are asked for one reading at most.
const ROUNDS_MAX: usize = 32;

/// What nodes are asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Runs over nodes.
    pub runs: BTreeSet<RunId>,
    /// Frames, each of which only its own node is asked about.
    pub frames: BTreeSet<(NodeId, FrameId)>,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask all nodes, and tell the answers with this number.
    Ask {
        /// The number.
        round: u64,
        /// What to ask about.
        named: Named,
    },
    /// The request has to give way.
    GiveWay {
        /// Because of this.
        deadlock: Deadlock,
        /// In this way.
        way: Way,
    },
    /// Nothing before this time, or before something is told.
    Rest {
        /// `None`: nothing before something is told.
        until: Option<Millis>,
    },
}

/// Looks for deadlocks on behalf of one request that waits.
#[derive(Clone, Debug, Default)]
pub struct Looker {
    /// `None`: not known yet.
    own: Option<RequestName>,
    /// What each look asks about first.
    first_named: Named,
    /// How many nodes are asked.
    nodes: usize,
    waits: bool,
    /// The next look begins then.
    look_at: Millis,
    look: Option<Look>,
    /// How often the nodes were asked, over all looks.
    rounds: u64,
    looks: u64,
    /// How many of them were over when the request began to wait.
    looks_before: u64,
    seen: Option<Seen>,
}

/// A look that is going on.
#[derive(Clone, Debug)]
struct Look {
    first: Option<Vec<Reading>>,
    named: Named,
    asked_at: Millis,
    /// How often the nodes were asked for the present reading.
    rounds: usize,
    answers: Vec<Answer>,
}

#[derive(Clone, Debug)]
enum Answer {
    Awaited,
    Came(Box<Reading>),
    Missing,
}

/// The deadlock that the last look has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// Those who can give way.
    requests: BTreeSet<RequestName>,
    /// How many looks in a row have shown it.
    looks: usize,
}

impl Looker {
    /// A looker that asks so many nodes, first about these runs and frames.
    #[must_use]
    pub fn new(first_named: Named, nodes: usize) -> Self {
        Self { first_named, nodes, ..Self::default() }
    }

    /// Tells the name of the request, as soon as it is known.
    pub fn is(&mut self, own: RequestName) {
        self.own = Some(own);
    }

    /// The name of the request, if it is known.
    #[must_use]
    pub fn own(&self) -> Option<RequestName> {
        self.own
    }

    /// Tells that another node can be asked. A look that is going on asks it, too.
    pub fn add_node(&mut self) {
        #[cfg(test)]
        if crate::nodes::sim::is_broken(crate::nodes::sim::Rule::ReadsWhereOthersRead) {
            return;
        }
        self.nodes += 1;
    }

    /// How many looks are over.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Tells whether the request waits, so that it may be part of a deadlock.
    pub fn waits(&mut self, waits: bool, now: Millis) {
        if waits == self.waits {
            return;
        }
        self.waits = waits;
        self.look_at = now.saturating_add(LOOK_AFTER_MS);
        self.look = None;
        self.looks_before = self.looks;
        self.seen = None;
    }

    /// Tells the answer of a node; `None` if it cannot be asked. An answer to an earlier asking counts for
    /// nothing: it may be older than the reading before.
    pub fn answer(&mut self, round: u64, node: usize, reading: Option<Reading>) {
        if round != self.rounds {
            return;
        }
        let answers = self.look.as_mut().map(|look| &mut look.answers);
        if let Some(answer) = answers.and_then(|answers| answers.get_mut(node)) {
            *answer = reading.map_or(Answer::Missing, |it| Answer::Came(Box::new(it)));
        }
    }

    /// What is to be done now. To be called again until there is nothing.
    pub fn next(&mut self, now: Millis) -> Next {
        if !self.waits {
            return Next::Rest { until: None };
        }
        #[cfg(test)]
        if crate::nodes::sim::is_broken(crate::nodes::sim::Rule::LooksForDeadlocks) {
            return Next::Rest { until: None };
        }
        let Some(mut look) = self.look.take() else {
            if now < self.look_at {
                return Next::Rest { until: Some(self.look_at) };
            }
            let (first, rounds, answers) = (None, 0, Vec::new());
            let named = self.first_named.clone();
            return self.ask(Look { first, named, asked_at: now, rounds, answers }, now);
        };
        let until = look.asked_at.saturating_add(ANSWER_MS);
        let is_awaited = look.answers.iter().any(|answer| matches!(answer, Answer::Awaited));
        if is_awaited && now < until {
            self.look = Some(look);
            return Next::Rest { until: Some(until) };
        }
        let readings = look.readings();
        let has_more = look.answers.len() < self.nodes;
        if has_more {
            // The first reading has to be whole.
            look.first = None;
        }
        if (look.named.add(&readings) || has_more) && look.rounds < ROUNDS_MAX {
            return self.ask(look, now);
        }
        match look.first.take() {
            None => {
                look.first = Some(readings);
                look.rounds = 0;
                self.ask(look, now)
            }
            Some(first) => {
                let decided = self.decide(&first, &readings);
                // During the first look, others may not have named yet what they read.
                let is_first = self.looks == self.looks_before;
                self.looks += 1;
                let pause_ms = match self.seen {
                    Some(_) => TURN_MS,
                    None if is_first => LOOK_AFTER_MS,
                    None => LOOK_EVERY_MS,
                };
                self.look_at = now.saturating_add(pause_ms);
                match decided {
                    Some((deadlock, way)) => Next::GiveWay { deadlock, way },
                    None => Next::Rest { until: Some(self.look_at) },
                }
            }
        }
    }

    fn ask(&mut self, mut look: Look, now: Millis) -> Next {
        look.asked_at = now;
        look.rounds += 1;
        look.answers = vec![Answer::Awaited; self.nodes];
        let named = look.named.clone();
        self.look = Some(look);
        self.rounds += 1;
        Next::Ask { round: self.rounds, named }
    }

    /// Whether the request is to give way, after a look that has shown this.
    fn decide(&mut self, first: &[Reading], second: &[Reading]) -> Option<(Deadlock, Way)> {
        let seen = self.seen.take();
        // What contradicts itself shows nothing.
        let deadlocks = find(first, second).unwrap_or_default();
        let own = self.own?;
        let is_own = |deadlock: &Deadlock| deadlock.victims.iter().any(|it| it.request == own);
        let deadlock = deadlocks.into_iter().find(is_own)?;
        let requests: BTreeSet<RequestName> =
            deadlock.victims.iter().map(|victim| victim.request).collect();
        let before = seen.filter(|seen| seen.requests == requests).map_or(0, |seen| seen.looks);
        let looks = before + 1;
        let victim = deadlock.victim(looks);
        #[cfg(test)]
        let victim = match crate::nodes::sim::is_broken(crate::nodes::sim::Rule::OneGivesWay) {
            true => deadlock.victims.iter().find(|victim| victim.request == own).copied(),
            false => victim,
        };
        match victim.filter(|victim| victim.request == own) {
            Some(victim) => Some((deadlock, victim.way)),
            None => {
                self.seen = Some(Seen { requests, looks });
                None
            }
        }
    }
}

impl Look {
    fn readings(&self) -> Vec<Reading> {
        let came = self.answers.iter().filter_map(|answer| match answer {
            Answer::Came(reading) => Some(Reading::clone(reading)),
            Answer::Awaited | Answer::Missing => None,
        });
        came.collect()
    }
}

impl Named {
    /// Adds what readings name. Returns whether there was something new.
    fn add(&mut self, readings: &[Reading]) -> bool {
        let (runs, frames) = named(readings);
        let known = (self.runs.len(), self.frames.len());
        self.runs.extend(runs);
        self.frames.extend(frames);
        known != (self.runs.len(), self.frames.len())
    }
}
