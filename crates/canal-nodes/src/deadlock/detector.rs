//! Decides when a waiting request looks for deadlocks over nodes, and when it gives way.
//!
//! A *look* is two readings of all nodes in reach; the second begins after the last answer of the
//! first. One reading asks all nodes repeatedly, until their answers name no run and no frame that
//! the question left out.
//!
//! Invariant: a request gives way only while it waits, and only over a deadlock that one look has
//! shown whole. A node that did not answer in time, or at all, counts as able to continue.

use std::collections::BTreeSet;

use super::find::{Deadlock, find};
use super::union::{RequestName, Way};
use crate::Millis;
use canal_core::{Above, FrameId, NodeId, RunId};
use canal_protocol::WaitsFound;

/// How long a request waits before its first look.
const LOOK_AFTER_MS: Millis = 1_000;

/// The time between a look and the next one.
const LOOK_EVERY_MS: Millis = 5_000;

/// The same after a look that has shown a deadlock in which another request has to give way first.
/// That request looks at least once meanwhile, whenever the two began.
const TURN_MS: Millis = 2 * LOOK_EVERY_MS;

/// How long a node may take to answer.
const ANSWER_MS: Millis = 5_000;

/// How many times one reading asks the nodes at most.
const ROUNDS_MAX: usize = 32;

/// The runs and frames that a question to the nodes names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Runs over nodes.
    pub runs: BTreeSet<RunId>,
    /// Frames; each node is asked only about its own.
    pub frames: BTreeSet<(NodeId, FrameId)>,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask all nodes about these runs and frames, and pass on the answers with this number.
    Ask(u64, Named),
    /// The request has to give way.
    GiveWay {
        /// The deadlock that requires it.
        deadlock: Deadlock,
        /// How it gives way.
        way: Way,
    },
    /// Do nothing before this time, or before the next call of another method; `None`: only before
    /// that.
    Rest(Option<Millis>),
}

/// Looks for deadlocks on behalf of one waiting request.
#[derive(Clone, Debug, Default)]
pub struct Detector {
    /// `None` until it is known.
    own: Option<RequestName>,
    /// The runs and frames that each look asks about first.
    first_named: Named,
    /// The number of nodes that are asked.
    nodes: usize,
    waits: bool,
    /// The time at which the next look begins.
    look_at: Millis,
    look: Option<Look>,
    /// How many times the nodes were asked, over all looks.
    rounds: u64,
    looks: u64,
    /// How many looks were over when the request began to wait.
    looks_before: u64,
    /// The requests that can give way in the deadlock that the last look showed, and how many
    /// looks in a row have shown it.
    seen: Option<(BTreeSet<RequestName>, usize)>,
}

/// A look in progress.
#[derive(Clone, Debug)]
struct Look {
    first: Option<Vec<WaitsFound>>,
    named: Named,
    asked_at: Millis,
    /// How many times the nodes were asked for the present reading.
    rounds: usize,
    /// For each node, its answer once it came; `Some(None)` if it cannot be asked.
    answers: Vec<Option<Option<WaitsFound>>>,
}

impl Detector {
    /// A detector that asks this many nodes, first about these runs and frames.
    pub fn new(first_named: Named, nodes: usize) -> Self {
        Self { first_named, nodes, ..Self::default() }
    }

    /// Sets the name of the request, as soon as it is known.
    pub fn is(&mut self, own: RequestName) {
        self.own = Some(own);
    }

    /// The name of the request, if it is known.
    pub fn own(&self) -> Option<RequestName> {
        self.own
    }

    /// Adds a node that can be asked. A look in progress asks it, too.
    pub fn add_node(&mut self) {
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::ReadsWhereOthersRead) {
            return;
        }
        self.nodes += 1;
    }

    /// How many looks are over.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Sets whether the request waits, and so may be part of a deadlock.
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

    /// Passes on the answer of a node; `None` if it cannot be asked. An answer to an earlier
    /// question is ignored: it may be older than the previous reading.
    pub fn answer(&mut self, round: u64, node: usize, reading: Option<WaitsFound>) {
        if round != self.rounds {
            return;
        }
        let answers = self.look.as_mut().map(|look| &mut look.answers);
        if let Some(answer) = answers.and_then(|answers| answers.get_mut(node)) {
            *answer = Some(reading);
        }
    }

    /// The next thing to do now. Call it again until there is nothing.
    pub fn next(&mut self, now: Millis) -> Next {
        if !self.waits {
            return Next::Rest(None);
        }
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::LooksForDeadlocks) {
            return Next::Rest(None);
        }
        let Some(mut look) = self.look.take() else {
            if now < self.look_at {
                return Next::Rest(Some(self.look_at));
            }
            let (first, rounds, answers) = (None, 0, Vec::new());
            let named = self.first_named.clone();
            return self.ask(Look { first, named, asked_at: now, rounds, answers }, now);
        };
        let until = look.asked_at.saturating_add(ANSWER_MS);
        let is_awaited = look.answers.iter().any(Option::is_none);
        if is_awaited && now < until {
            self.look = Some(look);
            return Next::Rest(Some(until));
        }
        let has_more = look.answers.len() < self.nodes;
        let answers = std::mem::take(&mut look.answers);
        let readings: Vec<WaitsFound> = answers.into_iter().flatten().flatten().collect();
        if has_more {
            // The first reading must be complete.
            look.first = None;
        }
        if (look.named.add(&readings) || has_more) && look.rounds < ROUNDS_MAX {
            return self.ask(look, now);
        }
        let Some(first) = look.first.take() else {
            look.first = Some(readings);
            look.rounds = 0;
            return self.ask(look, now);
        };
        let decided = self.decide(&first, &readings);
        // During the first look, others may not have named yet the nodes that they read.
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
            None => Next::Rest(Some(self.look_at)),
        }
    }

    fn ask(&mut self, mut look: Look, now: Millis) -> Next {
        look.asked_at = now;
        look.rounds += 1;
        look.answers = vec![None; self.nodes];
        let named = look.named.clone();
        self.look = Some(look);
        self.rounds += 1;
        Next::Ask(self.rounds, named)
    }

    /// Whether the request must give way, after a look with these readings.
    fn decide(&mut self, first: &[WaitsFound], second: &[WaitsFound]) -> Option<(Deadlock, Way)> {
        let seen = self.seen.take();
        // A reading that contradicts itself shows nothing.
        let deadlocks = find(first, second).unwrap_or_default();
        let own = self.own?;
        let is_own = |deadlock: &Deadlock| deadlock.victims.iter().any(|it| it.request == own);
        let deadlock = deadlocks.into_iter().find(is_own)?;
        let requests: BTreeSet<RequestName> =
            deadlock.victims.iter().map(|victim| victim.request).collect();
        let looks = seen.filter(|seen| seen.0 == requests).map_or(0, |(_, looks)| looks) + 1;
        let victim = deadlock.victim(looks);
        #[cfg(test)]
        let victim = match crate::sim::is_broken(crate::sim::Rule::OneGivesWay) {
            true => deadlock.victims.iter().find(|victim| victim.request == own).copied(),
            false => victim,
        };
        match victim.filter(|victim| victim.request == own) {
            Some(victim) => Some((deadlock, victim.way)),
            None => {
                self.seen = Some((requests, looks));
                None
            }
        }
    }
}

impl Named {
    /// Adds the runs and frames that readings name; their waits must be read, too. Returns whether
    /// one was new.
    fn add(&mut self, readings: &[WaitsFound]) -> bool {
        let known = (self.runs.len(), self.frames.len());
        for frame in readings.iter().flat_map(|reading| &reading.frames) {
            self.runs.extend(frame.part_of.iter().map(|part_of| part_of.run));
            match frame.above() {
                Some(Above::Run(run)) => drop(self.runs.insert(run)),
                Some(Above::Frame(node, frame)) => drop(self.frames.insert((node, frame))),
                None => {}
            }
        }
        known != (self.runs.len(), self.frames.len())
    }
}
