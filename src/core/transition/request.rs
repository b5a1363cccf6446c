//! Decides a new request: granted, refused or queued.

use std::collections::BTreeSet;

use super::worklist::Transition;
use crate::core::admission::admit::Admission;
use crate::core::index::grant_order::{self, Rank};
use crate::core::index::lock::Lock;
use crate::core::{
    Ask, FrameId, Granted, Key, Outcome, Refusal, Request, RequestId, Table, View, Wait,
};

impl Table {
    pub(in crate::core) fn decide(&mut self, transition: &mut Transition<'_>, asked: &Request) {
        let request = RequestId(self.revision.0);
        if let Some(why) = self.fault(asked) {
            return self.commit(transition, Outcome::Refused { request, why });
        }
        if self.recovery.is_some() {
            return self.commit(transition, Outcome::Refused { request, why: Refusal::Recovering });
        }
        let frame = self.frame_of(asked.host, &asked.owner).unwrap_or(FrameId(self.revision.0));
        let lineage = self.lineage(frame, self.live_parent(asked));
        let rank = Rank::ordinary(asked.priority, grant_order::arrival(self.rules, request));
        let admission = match self.admission(asked, &lineage, rank) {
            Admission::Behind(item) => self
                .admission_by_bypass(asked, &lineage, frame, rank)
                .unwrap_or(Admission::Behind(item)),
            admission => admission,
        };
        match admission {
            Admission::Grant { items, bypassed_blockers } => {
                let token = self.next_token;
                self.commit(
                    transition,
                    Outcome::Granted(Granted { request, frame, token, items, bypassed_blockers }),
                );
                self.raise_barriers(transition, asked);
            }
            Admission::Conflict(item) | Admission::Behind(item) if asked.wait == Wait::No => {
                self.commit(transition, Outcome::Refused { request, why: Refusal::Full { item } });
            }
            Admission::Conflict(_) | Admission::Behind(_) => {
                let outcome = match self.own_deadlock(asked, &lineage) {
                    Some(item) => Outcome::Refused { request, why: Refusal::OwnDeadlock { item } },
                    None => Outcome::Queued { request, frame },
                };
                self.commit(transition, outcome);
            }
        }
    }

    /// Why a request is invalid regardless of holds and waiters, if it is.
    fn fault(&self, asked: &Request) -> Option<Refusal> {
        if self.tagged(asked.tag).is_some() {
            return Some(Refusal::Duplicate);
        }
        if asked.items.is_empty() {
            return Some(Refusal::Invalid { item: 0 });
        }
        if let Some(why) = self.fault_of_lease(asked) {
            return Some(why);
        }
        let mut keys = BTreeSet::new();
        asked.items.iter().enumerate().find_map(|(item, wanted)| {
            if asked.items.len() > 1 && !keys.insert(&wanted.key) {
                return Some(Refusal::Invalid { item });
            }
            self.fault_of_item(item, &wanted.key, &wanted.ask)
        })
    }

    fn fault_of_item(&self, item: usize, key: &Key, ask: &Ask) -> Option<Refusal> {
        let Ask::Counted { count, view: stated } = ask else { return None };
        if *count == 0 || matches!(stated, Some(View::Buckets { per: 0, .. })) {
            return Some(Refusal::Invalid { item });
        }
        let lock = self.tree.lock(key);
        let in_force = lock.and_then(Lock::kind_in_force);
        match (in_force, stated) {
            (Some(in_use), Some(stated)) if in_use != stated.kind() => {
                return Some(Refusal::Kind { item, in_use });
            }
            _ => {}
        }
        let Some(view) = Lock::view_of(lock, *stated) else {
            return in_force.map(|in_use| Refusal::Kind { item, in_use });
        };
        if let Some(View::Slots { slots }) = stated
            && *slots != view.capacity()
        {
            return Some(Refusal::Slots { item, lock: view.capacity() });
        }
        let capacity = view.capacity();
        (stated.is_some() && *count > capacity).then_some(Refusal::TooLarge { item, capacity })
    }
}
