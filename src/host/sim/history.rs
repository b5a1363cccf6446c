//! What all replicas must agree on.

use std::collections::BTreeMap;

use super::check::excludes;
use crate::core::{Change, Entry, Item, Outcome, Revision, Tag, Token};

/// The entries that were applied, with what was decided by them.
#[derive(Debug, Default)]
pub(super) struct History {
    applied: BTreeMap<Revision, (Entry, Vec<Outcome>)>,
    last_token: Token,
    told: Vec<(Tag, Item, Token)>,
    /// What is wrong.
    pub(super) wrong: Option<String>,
    /// The past is not what it was: what was decided is not compared any more, only what was told.
    rewritten: bool,
    pub(super) grants: u64,
    pub(super) hosts_gone: u64,
    pub(super) adoptions: u64,
    pub(super) deadlocks: u64,
}

impl History {
    pub(super) fn new(rewritten: bool) -> Self {
        Self { rewritten, ..Self::default() }
    }

    pub(super) fn add(&mut self, revision: Revision, entry: &Entry, outcomes: &[Outcome]) {
        if let Some((known, decided)) = self.applied.get(&revision) {
            let same = known == entry && decided == outcomes;
            if !same && !self.rewritten {
                self.wrong = Some(format!(
                    "replicas differ at {revision}: {known:?} {decided:?} {entry:?} {outcomes:?}"
                ));
            }
            return;
        }
        for outcome in outcomes {
            match outcome {
                Outcome::Granted(granted) => {
                    self.grants += 1;
                    if granted.token <= self.last_token && !self.rewritten {
                        self.wrong = Some(format!("token {} does not grow", granted.token));
                    }
                    self.last_token = granted.token;
                }
                Outcome::Refused { why: crate::core::Refusal::Deadlock { .. }, .. } => {
                    self.deadlocks += 1;
                }
                _ => {}
            }
        }
        match &entry.change {
            Change::HostGone { .. } => self.hosts_gone += 1,
            Change::HostAdopt { .. } => self.adoptions += 1,
            _ => {}
        }
        self.applied.insert(revision, (entry.clone(), outcomes.to_vec()));
    }

    /// A process is told a token: each is told once, and of what excludes each other the later one
    /// is larger.
    pub(super) fn tell(&mut self, tag: Tag, item: &Item, token: Token) {
        for (other_tag, other_item, other) in &self.told {
            let grows = *other < token || !excludes(item, other_item);
            if *other_tag != tag && (*other == token || !grows) {
                self.wrong = Some(format!(
                    "token {token} is told for {item:?} after {other} for {other_item:?}"
                ));
            }
        }
        self.told.push((tag, item.clone(), token));
    }
}
