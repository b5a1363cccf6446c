//! Newer requests that supersede older ones of the same user.
//!
//! Invariant: a request supersedes none of its own frame or of a frame that encloses it, and an
//! older request ends only if the newer one is granted or waits.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::{Key, Owner, Refusal, Request, RequestId, Superseded, Table, Token, WaiterState};

impl Table {
    /// The waiting requests that a new one supersedes. Linear in the number of waiters of its first
    /// key, or of all waiters if the request names a group.
    pub(crate) fn superseded_waiters(&self, asked: &Request) -> Vec<RequestId> {
        let Some(by) = asked.supersede.as_deref().filter(|by| by.which.is_some()) else {
            return Vec::new();
        };
        let waiting = match (&by.group, asked.items.first()) {
            (None, Some(item)) => self.served(&item.key),
            _ => self.waiters.keys().copied().collect(),
        };
        let lineage = self.newcomer(Cow::Borrowed(asked), RequestId(u64::MAX)).lineage;
        let is_superseded = |waiter: &&WaiterState| {
            !lineage.contains(&waiter.frame) && are_one_group(&waiter.request, asked)
        };
        let waiting = waiting.into_iter().filter_map(|id| self.waiter(id));
        waiting.filter(is_superseded).map(|waiter| waiter.id).collect()
    }

    /// The holds that a request supersedes, oldest first: their requests are older. The request
    /// waits or holds.
    pub fn superseded_holds(&self, request: RequestId) -> Vec<Token> {
        self.request(request).map_or_else(Vec::new, |asked| self.holds_before(asked, request))
    }

    fn holds_before(&self, asked: &Request, request: RequestId) -> Vec<Token> {
        let by = asked.supersede.as_deref();
        let Some(by) = by.filter(|by| by.which == Some(Superseded::Running)) else {
            return Vec::new();
        };
        let tokens: BTreeSet<Token> = match &by.group {
            // A hold that has released a key still belongs to the group.
            None => asked.items.iter().flat_map(|item| self.holders(&item.key)).collect(),
            Some(_) => self.holds.keys().copied().collect(),
        };
        let lineage = self.newcomer(Cow::Borrowed(asked), RequestId(u64::MAX)).lineage;
        let holds = tokens.into_iter().filter_map(|token| self.hold(token));
        let superseded = holds.filter(|hold| {
            let is_older = hold.request < request && !lineage.contains(&hold.frame);
            is_older && are_one_group(&hold.asked, asked)
        });
        superseded.map(|hold| hold.token).collect()
    }

    /// Why a request is refused because it cannot supersede a hold of its group, or because it was
    /// itself superseded before its client asked again.
    pub(crate) fn fault_of_supersede(&self, asked: &Request) -> Option<Refusal> {
        if let Some(past) = self.globals.superseded.iter().find(|past| past.tag == asked.tag) {
            return Some(Refusal::Superseded { by: past.by });
        }
        let tokens = self.holds_before(asked, RequestId(u64::MAX));
        let mut holds = tokens.into_iter().filter_map(|token| self.hold(token));
        let hold = holds.find(|hold| {
            let is_process = matches!(hold.asked.owner, Owner::Process(_));
            // The client can signal neither a lease nor a process on another host.
            !is_process || hold.orphaned || hold.asked.host != asked.host
        })?;
        Some(Refusal::CannotEnd { token: hold.token })
    }
}

/// Whether two requests belong to one user and one group. The job tokens of a build end with it,
/// and a part of a request over nodes is one of several, so neither belongs to a group.
fn are_one_group(one: &Request, other: &Request) -> bool {
    let is_alone =
        |asked: &Request| matches!(asked.owner, Owner::Jobserver(_)) || asked.over_nodes.is_some();
    let group = |asked: &Request| asked.supersede.as_ref().and_then(|it| it.group.clone());
    let has = |asked: &Request, key: &Key| asked.items.iter().any(|item| item.key == *key);
    let same_keys = || {
        one.items.len() == other.items.len() && one.items.iter().all(|item| has(other, &item.key))
    };
    let named = group(one);
    one.uid == other.uid
        && !is_alone(one)
        && !is_alone(other)
        && named == group(other)
        && (named.is_some() || same_keys())
}
