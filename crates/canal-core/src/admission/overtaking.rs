//! Finds the waiters that precede a request. It ignores the bypass of blockers that wait for the
//! request's own session ([`crate::deadlock`]).

use std::collections::BTreeSet;
use std::collections::btree_map::Range;

use super::admit::Obstacle;
use crate::index::counted_lock::Lock;
use crate::index::grant_order::{Rank, arrived_before};
use crate::state::table::Contender;
use crate::{Entry, Granted, Item, Mode, Request, RequestId, Result, Table};

impl Table {
    /// The waiters that precede a request.
    pub(crate) fn predecessors(&self, contender: &Contender<'_>) -> BTreeSet<RequestId> {
        let items = contender.asked.items.iter();
        items.flat_map(|item| self.predecessors_of_item(contender, item)).collect()
    }

    /// The waiters that a grant overtakes: those that arrived before its request, compete with it
    /// for an item and do not precede it. Omits predecessors, because they wait for the session of
    /// the request. For the same reason, omits competitors for an item that its lineage covers.
    pub(crate) fn passed_by(&self, entry: &Entry, grant: &Granted) -> Result<BTreeSet<RequestId>> {
        let mut passed = BTreeSet::new();
        if self.waiters.is_empty() {
            return Ok(passed);
        }
        let id = grant.request;
        let contender = match self.waiters.get(&id) {
            Some(waiter) => self.contender(waiter),
            None => self.newcomer(self.sized(self.asked(entry, id)?), id),
        };
        let Contender { asked, lineage, rank, .. } = &contender;
        let items = std::iter::zip(&asked.items, &grant.items);
        for (item, _) in items.filter(|(_, given)| !given.shared) {
            let (key, mode) = (&item.key, item.ask.mode());
            if mode == Mode::Counted {
                for waits in self.tree.lock(key).queue.values() {
                    let barrier = Rank::barrier(RequestId(u64::MAX));
                    passed.extend(arrived_before(waits, barrier, rank.request));
                }
            }
            let competing = self.tree.competing(key, mode);
            let mut behind =
                competing.flat_map(|waits| arrived_before(waits, *rank, rank.request)).peekable();
            if behind.peek().is_some() && !self.lineage_covers(key, mode, lineage) {
                passed.extend(behind);
            }
        }
        if grant.bypassed_blockers {
            let ahead = self.predecessors(&contender);
            passed.retain(|waiter| !ahead.contains(waiter));
        }
        Ok(passed)
    }

    /// The waiters that arrived with `id` or later, oldest first.
    pub fn waiters_from(&self, id: RequestId) -> impl Iterator<Item = RequestId> {
        self.waiters.range(id..).map(|(request, _)| *request)
    }

    /// The first predecessor of a waiter that is not blocked by a hold.
    pub fn first_ahead(&self, request: RequestId) -> Option<RequestId> {
        let waiter = self.waiters.get(&request).filter(|waiter| !self.is_inactive(waiter))?;
        self.first_predecessor(&self.contender(waiter))
    }

    /// The first predecessor of a request that arrives next.
    pub fn first_ahead_of(&self, asked: &Request) -> Option<RequestId> {
        let next = RequestId(self.globals.revision.0 + 1);
        self.first_predecessor(&self.newcomer(self.sized(asked), next))
    }

    fn first_predecessor(&self, contender: &Contender<'_>) -> Option<RequestId> {
        let Err((item, Obstacle::Behind)) = self.admission(contender) else { return None };
        let preceding = self.preceding(contender, &contender.asked.items[item]);
        preceding.filter_map(|mut ranks| ranks.next()).min().map(|(first, _)| first.request)
    }

    /// The last waiter that precedes one item of a request. Waiters are granted in order, so this
    /// one probably blocks the item longest.
    pub(crate) fn last_ahead(&self, contender: &Contender<'_>, item: &Item) -> Option<RequestId> {
        let preceding = self.preceding(contender, item);
        preceding.filter_map(|mut ranks| ranks.next_back()).max().map(|(last, _)| last.request)
    }

    /// The waiters that precede one item of a request, in order.
    pub(crate) fn predecessors_of_item(
        &self,
        contender: &Contender<'_>,
        item: &Item,
    ) -> impl Iterator<Item = RequestId> + use<> {
        let ahead: BTreeSet<Rank> =
            self.preceding(contender, item).flatten().map(|(rank, _)| *rank).collect();
        ahead.into_iter().map(|rank| rank.request)
    }

    /// The waiters that precede one item of a request: some ranges, each in order.
    fn preceding<'a>(
        &'a self,
        Contender { lineage, rank, .. }: &Contender<'_>,
        item: &'a Item,
    ) -> impl Iterator<Item = Range<'a, Rank, usize>> {
        let (key, mode, rank) = (&item.key, item.ask.mode(), *rank);
        let slots = self.contested(item, lineage);
        let slots = slots.map(|(lock, class)| lock.preceding(class.capacity, rank));
        let is_covered = self.lineage_covers(key, mode, lineage);
        let competing = (!is_covered).then(|| self.tree.competing(key, mode));
        let competing = competing.into_iter().flatten().map(move |waits| waits.range(..rank));
        slots.into_iter().flatten().chain(competing)
    }
}

impl Lock {
    /// The waiters of each class that precede a request of this rank.
    ///
    /// A waiter whose own view has too few free slots lets a request with a larger view overtake it
    /// if that request fits. It blocks the request if it fits itself, or if its view is at least as
    /// large. Nothing overtakes a barrier.
    fn preceding(&self, capacity: u64, rank: Rank) -> impl Iterator<Item = Range<'_, Rank, usize>> {
        self.queue.iter().map(move |(class, waits)| {
            let holds_back = self.fits(*class) || class.capacity >= capacity;
            waits.range(..if holds_back { rank } else { rank.min(Rank::AFTER_BARRIERS) })
        })
    }

    /// The first waiter for slots of this lock that precedes a request of this rank.
    pub(crate) fn first_ahead(&self, capacity: u64, rank: Rank) -> Option<Rank> {
        let preceding = self.preceding(capacity, rank);
        preceding.filter_map(|mut ranks| ranks.next()).map(|(first, _)| *first).min()
    }

    /// Whether a waiter for slots of this lock that is not a barrier is behind a rank.
    pub(crate) fn has_behind(&self, rank: Rank) -> bool {
        let mut lasts = self.queue.values().filter_map(|waits| waits.keys().next_back());
        lasts.any(|last| *last > rank && last.is_ordinary)
    }
}
