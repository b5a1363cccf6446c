//! The locks of one node: who holds a key, who waits for it, and the next token.

use super::rule::{Rule, is_broken};
use crate::core::{OverNodes, Token};
use crate::nodes::Refusal;

/// A lease: the request over nodes, and the number of the asking. A job that is no request over
/// nodes has a number too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeaseName {
    pub(super) run: u32,
    pub(super) lease: u32,
}

/// One part of a request over nodes; or a job of the node itself.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) name: LeaseName,
    pub(super) key: u8,
    /// `None`: a job of the node itself.
    pub(super) over: Option<OverNodes>,
    pub(super) no_wait: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) asked: Asked,
    pub(super) token: Token,
    pub(super) is_firm: bool,
}

/// What became of a lease.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    Queued(LeaseName),
    Granted(LeaseName, Token),
    Refused(LeaseName, Refusal),
    SpareTaken(LeaseName),
}

/// The locks of one node. Each key has one slot.
#[derive(Clone, Debug)]
pub(super) struct Locks {
    next_token: Token,
    pub(super) held: Vec<Held>,
    pub(super) waiting: Vec<Asked>,
}

impl Asked {
    fn is_spare(&self) -> bool {
        self.over.as_ref().is_some_and(|over| over.spare)
    }

    /// Whether two requests for a key may be known at one node.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let (Some(one), Some(other)) = (&self.over, &other.over) else { return true };
        let is_any = |over: &OverNodes| over.require == crate::core::Require::Any;
        is_any(one) || is_any(other) || one.always_meets(other)
    }
}

impl Locks {
    pub(super) fn new(next_token: Token) -> Self {
        Self { next_token, held: Vec::new(), waiting: Vec::new() }
    }

    pub(super) fn ask(&mut self, asked: Asked) -> Vec<Told> {
        let name = asked.name;
        let known = self.held.iter().map(|held| &held.asked).chain(&self.waiting);
        let same_key = |other: &&Asked| other.key == asked.key;
        if known.clone().any(|other| other.name == name && other.name.run != 0) {
            return vec![Told::Refused(name, Refusal::Invalid)];
        }
        if !is_broken(Rule::ListsMeet)
            && known.clone().filter(same_key).any(|other| !other.agrees_with(&asked))
        {
            return vec![Told::Refused(name, Refusal::Invalid)];
        }
        let is_free = !known.clone().filter(same_key).any(|other| !self.is_spare_only(other.name));
        if !is_free && (asked.no_wait || asked.is_spare()) {
            return vec![Told::Refused(name, Refusal::Full)];
        }
        if asked.is_spare() && self.held.iter().any(|held| held.asked.key == asked.key) {
            return vec![Told::Refused(name, Refusal::Full)];
        }
        let key = asked.key;
        self.waiting.push(asked);
        let mut told = self.grant(key);
        if self.waiting.iter().any(|waiting| waiting.name == name) {
            told.push(Told::Queued(name));
        }
        told
    }

    /// Whether a lease is a spare that is not confirmed: it bars nobody.
    fn is_spare_only(&self, name: LeaseName) -> bool {
        let spare = |held: &Held| held.asked.name == name && held.asked.is_spare() && !held.is_firm;
        self.held.iter().any(spare)
    }

    /// Grants a key to the first that waits for it, if it is free.
    fn grant(&mut self, key: u8) -> Vec<Told> {
        let mut told = Vec::new();
        let holds = |held: &Held| held.asked.key == key;
        let bars = |held: &Held| holds(held) && (held.is_firm || !held.asked.is_spare());
        if self.held.iter().any(bars) {
            return told;
        }
        let Some(first) = self.waiting.iter().position(|waiting| waiting.key == key) else {
            return told;
        };
        self.held.retain(|held| {
            let stays = !holds(held);
            if !stays {
                told.push(Told::SpareTaken(held.asked.name));
            }
            stays
        });
        let asked = self.waiting.remove(first);
        let token = self.next_token;
        self.next_token = Token(token.0 + 1);
        told.push(Told::Granted(asked.name, token));
        let is_firm = asked.over.is_none();
        self.held.push(Held { asked, token, is_firm });
        told
    }

    /// Makes a collecting grant firm. Returns whether it was there, and could take the token.
    pub(super) fn confirm_at(&mut self, name: LeaseName, token: Token) -> bool {
        let held = self.held.iter_mut().find(|held| held.asked.name == name);
        let Some(held) = held else { return is_broken(Rule::GoneIsNotConfirmed) };
        if token < held.token {
            return false;
        }
        held.is_firm = true;
        held.token = token;
        if !is_broken(Rule::TokensGrow) {
            self.next_token = self.next_token.max(Token(token.0 + 1));
        }
        true
    }

    pub(super) fn is_spare(&self, name: LeaseName) -> bool {
        self.held.iter().any(|held| held.asked.name == name && held.asked.is_spare())
    }

    pub(super) fn holds_firmly(&self, name: LeaseName) -> bool {
        self.held.iter().any(|held| held.asked.name == name && held.is_firm)
    }

    /// Its connection has ended: it does not wait any more, and a collecting grant ends.
    pub(super) fn disconnect(&mut self, name: LeaseName) -> Vec<Told> {
        self.waiting.retain(|waiting| waiting.name != name);
        let is_collecting = !self.holds_firmly(name) && !is_broken(Rule::CollectingEnds);
        if is_collecting { self.release(name) } else { self.grant_all() }
    }

    /// Ends a grant, collecting or firm. What waits is not touched.
    pub(super) fn release(&mut self, name: LeaseName) -> Vec<Told> {
        self.held.retain(|held| held.asked.name != name);
        self.grant_all()
    }

    fn grant_all(&mut self) -> Vec<Told> {
        let keys: std::collections::BTreeSet<u8> =
            self.waiting.iter().map(|waiting| waiting.key).collect();
        keys.into_iter().flat_map(|key| self.grant(key)).collect()
    }

    /// The daemon starts again: what is firm stays. Jobs of the node itself go on, too.
    pub(super) fn restart(&mut self) {
        self.waiting.clear();
        self.held.retain(|held| held.is_firm);
    }

    /// The machine starts again: its own jobs have ended.
    pub(super) fn reboot(&mut self) {
        self.restart();
        self.held.retain(|held| held.asked.over.is_some());
    }
}
