//! Decides a new request: granted, refused or queued.

use std::collections::BTreeSet;

use super::worklist::Transition;
use crate::admission::admit::Admission;
use crate::index::grant_order::Rank;
use crate::index::lock::Lock;
use crate::state::locks::Misfit;
use crate::{Ask, FrameId, Granted, Key, Outcome, Refusal, Request, RequestId, Table, View, Wait};

impl Table {
    pub(crate) fn decide(&mut self, transition: &mut Transition<'_>, asked: &Request) {
        let request = RequestId(self.revision.0);
        let mut superseded = self.superseded_waiters(asked);
        if !self.is_refused_without(&superseded, asked, request) {
            self.supersede(transition, &mut superseded, request);
        }
        let mut sized = self.sized(asked);
        let mut outcome = self.verdict(&sized, request);
        let spares = self.spares_before_newcomer(&sized, &outcome);
        if !spares.is_empty() {
            self.take_back(transition, &spares);
            sized = self.sized(asked);
            outcome = self.verdict(&sized, request);
        }
        let is_refused = matches!(outcome, Outcome::Refused { .. });
        let is_granted = matches!(outcome, Outcome::Granted(_));
        self.commit(transition, outcome);
        if !is_refused {
            self.supersede(transition, &mut superseded, request);
        }
        if is_granted {
            self.raise_barriers(transition);
        }
    }

    /// Whether a new request would be refused if those that it supersedes were gone. It may be
    /// granted in spite of that: an older request can block one that is ahead of the new one, which
    /// then bypasses both.
    fn is_refused_without(
        &mut self,
        superseded: &[RequestId],
        asked: &Request,
        request: RequestId,
    ) -> bool {
        if superseded.is_empty() {
            return false;
        }
        let aside = self.set_aside(superseded);
        let verdict = self.verdict_alone(asked, request);
        for waiter in aside {
            self.use_locks(&waiter.request);
            // Cannot fail: its frame is still there.
            drop(self.add_waiter(waiter));
        }
        matches!(verdict, Outcome::Refused { .. })
    }

    /// Refuses waiting requests in favour of a new one.
    fn supersede(
        &mut self,
        transition: &mut Transition<'_>,
        superseded: &mut Vec<RequestId>,
        by: RequestId,
    ) {
        for request in superseded.drain(..) {
            let why = Refusal::Superseded { by };
            self.commit(transition, Outcome::Refused { request, why });
        }
    }

    /// The decision about a request if it were the next entry. Changes nothing.
    #[must_use]
    pub fn verdict_on(&self, asked: &Request) -> Outcome {
        let request = RequestId(self.revision.0 + 1);
        let superseded = self.superseded_waiters(asked);
        if !superseded.is_empty() {
            let mut without = self.clone();
            without.set_aside(&superseded);
            let verdict = without.verdict_alone(asked, request);
            if !matches!(verdict, Outcome::Refused { .. }) {
                return verdict;
            }
        }
        self.verdict_alone(asked, request)
    }

    /// The decision about a request if it were the next entry and superseded no other request.
    fn verdict_alone(&self, asked: &Request, request: RequestId) -> Outcome {
        let outcome = self.verdict(asked, request);
        let spares = self.spares_before_newcomer(&self.sized(asked), &outcome);
        if spares.is_empty() {
            return outcome;
        }
        self.without(&spares).verdict(asked, request)
    }

    /// The decision about a new request.
    fn verdict(&self, asked: &Request, request: RequestId) -> Outcome {
        if let Some(why) = self.fault(asked) {
            return Outcome::Refused { request, why };
        }
        if self.recovery.is_some() {
            return Outcome::Refused { request, why: Refusal::Recovering };
        }
        if let Some(why) = self.fault_of_supersede(asked) {
            return Outcome::Refused { request, why };
        }
        let sized = self.sized(asked);
        let asked: &Request = &sized;
        let frame = self.frame_of(asked.host, &asked.owner).unwrap_or(FrameId(request.0));
        let lineage = self.lineage(frame, self.live_parent(asked));
        let rank = Rank::ordinary(asked.priority, request);
        let admission = match self.admission(asked, &lineage, rank) {
            Admission::Behind(item) => self
                .admission_by_bypass(asked, &lineage, frame, rank)
                .unwrap_or(Admission::Behind(item)),
            admission => admission,
        };
        match admission {
            Admission::Grant { items, bypassed_blockers } => {
                let token = self.next_token;
                Outcome::Granted(Granted { request, frame, token, items, bypassed_blockers })
            }
            Admission::Conflict(item) | Admission::Behind(item) => {
                match self.refusal(asked, &lineage, item) {
                    Some(why) => Outcome::Refused { request, why },
                    None => Outcome::Queued { request, frame },
                }
            }
        }
    }

    /// Why a request that cannot be granted now is refused instead of queued. `item` is the first
    /// item that is not free.
    fn refusal(&self, asked: &Request, lineage: &[FrameId], item: usize) -> Option<Refusal> {
        let may_wait = asked.wait != Wait::No;
        let why = match self.misfit(asked, lineage) {
            Some(Misfit::Paused { item }) => (!may_wait).then_some(Refusal::Paused { item }),
            // Waiting would not help. `Misfit::Paused` comes first: the size of a paused key may be
            // about to change.
            Some(Misfit::TooLarge { item, capacity }) => Some(Refusal::TooLarge { item, capacity }),
            None if !may_wait => Some(Refusal::Full { item }),
            None => {
                let own = self.own_deadlock(asked, lineage);
                own.map(|item| Refusal::OwnDeadlock { item })
            }
        };
        why.or_else(|| self.too_many_wait(asked))
    }

    /// The refusal if one of its keys already has as many waiters as the request accepts, including
    /// stopped and parked ones.
    fn too_many_wait(&self, asked: &Request) -> Option<Refusal> {
        let most = asked.max_waiting?;
        let mut waiting = asked.items.iter().map(|item| self.waiting_for(&item.key) as u64);
        let item = waiting.clone().position(|waiting| waiting >= most)?;
        Some(Refusal::MaxWaiting { item, waiting: waiting.nth(item)? })
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
        if let Some(why) = self.fault_over_nodes(asked) {
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
        let Ask::Counted { count, view: stated, .. } = ask else { return None };
        if *count == 0 || matches!(stated, Some(View::Buckets { per: 0, .. })) {
            return Some(Refusal::Invalid { item });
        }
        let in_use = self.tree.lock(key).and_then(Lock::effective_kind)?;
        let stated = stated.map(View::kind)?;
        (stated != in_use).then_some(Refusal::Kind { item, in_use })
    }
}
