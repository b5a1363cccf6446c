//! Spares: parts of requests over nodes that enough other nodes have granted already.
//!
//! Invariant: a spare that is not confirmed keeps no request from being granted.

use std::collections::BTreeSet;

use super::commit::Transition;
use crate::admission::node_limits::are_rivals;
use crate::state::table::Contender;
use crate::{
    Change, ENTRY_VERSION, Entry, HoldState, Key, Outcome, Refusal, Release, Request, RequestId,
    Revision, Table, Token, UnixMillis,
};

impl Transition<'_> {
    /// Takes back the spares that keep a waiter waiting. Returns whether there were any.
    pub(crate) fn take_spares_back(&mut self) -> bool {
        if self.table.over_nodes.is_empty() {
            return false;
        }
        let keys: BTreeSet<&Key> =
            self.table.yielding().flat_map(|hold| &hold.items).map(|item| &item.key).collect();
        let near: BTreeSet<RequestId> =
            keys.into_iter().flat_map(|key| self.table.waiting_near(key)).collect();
        let first = self.table.in_order(near).into_iter().find_map(|request| {
            let waiter = self.table.waiters.get(&request)?;
            let contender = self.table.contender(waiter);
            let mut spares = self.table.spares_before(contender.clone());
            if spares.is_empty() {
                spares = self.table.spares_above(&contender);
            }
            (!spares.is_empty() && self.table.grants_without(&spares)).then_some(spares)
        });
        let Some(spares) = first else { return false };
        spares.iter().for_each(|token| self.release_whole(*token));
        true
    }
}

impl Table {
    /// The holds that yield to any request: unconfirmed spares, youngest first.
    fn yielding(&self) -> impl Iterator<Item = &HoldState> {
        let holds = self.over_nodes.iter().rev().filter_map(|request| self.hold_of(*request));
        holds.filter(|hold| hold.is_unconfirmed_spare())
    }

    /// The spares to revoke so that a request is free. Empty if it is already free, or is not free
    /// even without them.
    fn spares_before(&self, mut contender: Contender<'_>) -> Vec<Token> {
        let (mut tokens, mut gone) = (Vec::new(), Vec::new());
        if self.may_be_free_without(&contender, &gone) {
            return tokens;
        }
        for hold in self.yielding().filter(|hold| competes(hold, &contender.asked)) {
            tokens.push(hold.token);
            gone.push(hold.frame);
            contender.lineage.retain(|frame| *frame != hold.frame);
            if self.may_be_free_without(&contender, &gone) {
                return tokens;
            }
        }
        Vec::new()
    }

    /// The spares of a waiter's own session that compete with its request. The request may fit only
    /// while these spares are held. A waiter whose request cannot fit blocks no other request, so
    /// the table takes the spares back if that lets another waiter run.
    fn spares_above(&self, contender: &Contender<'_>) -> Vec<Token> {
        let above = self.yielding().filter(|hold| contender.lineage.contains(&hold.frame));
        above.filter(|hold| competes(hold, &contender.asked)).map(|hold| hold.token).collect()
    }

    /// The spares to revoke so that a new request can be granted instead of queued. A spare does
    /// not replace another spare.
    pub(crate) fn spares_before_newcomer(&self, asked: &Request, decided: &Outcome) -> Vec<Token> {
        let is_spare = asked.over_nodes.as_deref().is_some_and(|over| over.spare);
        let has_to_wait = matches!(
            decided,
            Outcome::Queued { .. }
                | Outcome::Refused { why: Refusal::Full { .. } | Refusal::MaxWaiting { .. }, .. }
        );
        if self.over_nodes.is_empty() || is_spare || !has_to_wait {
            return Vec::new();
        }
        let newcomer = self.newcomer(self.sized(asked), RequestId(u64::MAX));
        if self.misfit(&newcomer).is_some() { Vec::new() } else { self.spares_before(newcomer) }
    }

    /// Whether some request is granted without these spares. A waiter that fits then may still have
    /// to wait for its turn.
    fn grants_without(&self, spares: &[Token]) -> bool {
        let mut copy = self.clone();
        let mut outcomes = Vec::new();
        for token in spares {
            let change = Change::Release(Release::Hold { token: *token, forced: false });
            let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
            copy.apply(Revision(copy.globals.revision.0 + 1), &entry, &mut outcomes);
        }
        outcomes.iter().any(|outcome| matches!(outcome, Outcome::Granted(_)))
    }
}

/// Whether a hold and a request have items that can block each other.
fn competes(hold: &HoldState, asked: &Request) -> bool {
    hold.items.iter().any(|held| {
        let mut items = asked.items.iter();
        items.any(|item| are_rivals((&held.key, held.mode), (&item.key, item.ask.mode())))
    })
}
