//! Finds the waiters that precede a request. It ignores the bypass of blockers that wait for the
//! request's own session ([`crate::deadlock`]).

use std::collections::BTreeSet;
use std::ops::Bound;

use super::admit::Admission;
use crate::index::grant_order::{Class, Rank, Tier};
use crate::index::lock::Lock;
use crate::state::table::Contender;
use crate::{Entry, Granted, Item, Mode, Request, RequestId, Table};

impl Table {
    /// The waiters that precede a request.
    pub(crate) fn predecessors(&self, contender: &Contender<'_>) -> BTreeSet<RequestId> {
        let items = contender.asked.items.iter();
        items.flat_map(|item| self.predecessors_of_item(contender, item)).collect()
    }

    /// The waiters that a grant overtakes: those that arrived before its request, compete with it
    /// for an item and do not precede it. Omits predecessors, because they wait for the session of
    /// the request. For the same reason, omits competitors for an item that its lineage covers.
    pub(crate) fn passed_by(
        &self,
        entry: &Entry,
        granted: &Granted,
    ) -> Result<BTreeSet<RequestId>, String> {
        let mut passed = BTreeSet::new();
        if self.waiters.is_empty() {
            return Ok(passed);
        }
        let id = granted.request;
        let contender = match self.waiters.get(&id) {
            Some(waiter) => self.contender(waiter),
            None => self.newcomer(self.sized(self.asked(entry, id)?), id),
        };
        let Contender { asked, lineage, rank, .. } = &contender;
        let items = std::iter::zip(&asked.items, &granted.items);
        for (item, _) in items.filter(|(_, given)| !given.shared) {
            let (key, mode) = (&item.key, item.ask.mode());
            if let Some(lock) = self.tree.lock(key).filter(|_| mode == Mode::Counted) {
                passed.extend(lock.queue.arrived_before(rank.request));
            }
            let mut behind = self.tree.arrived_before_and_behind(key, mode, *rank).peekable();
            if behind.peek().is_some() && !self.lineage_covers(key, mode, lineage) {
                passed.extend(behind.map(|rank| rank.request));
            }
        }
        if granted.bypassed_blockers {
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
    #[must_use]
    pub fn first_ahead(&self, request: RequestId) -> Option<RequestId> {
        let waiter = self.waiters.get(&request).filter(|waiter| !self.is_inactive(waiter))?;
        self.first_predecessor(&self.contender(waiter))
    }

    /// The first predecessor of a request that arrives next.
    #[must_use]
    pub fn first_ahead_of(&self, asked: &Request) -> Option<RequestId> {
        let next = RequestId(self.revision.0 + 1);
        self.first_predecessor(&self.newcomer(self.sized(asked), next))
    }

    fn first_predecessor(&self, contender: &Contender<'_>) -> Option<RequestId> {
        let Admission::Behind(item) = self.admission(contender) else { return None };
        let (Contender { lineage, rank, .. }, item) = (contender, &contender.asked.items[item]);
        let slots = self.contested(item, lineage);
        let slots = slots.and_then(|(lock, class)| lock.first_ahead(class.capacity, *rank));
        let (key, mode) = (&item.key, item.ask.mode());
        let competing = self.tree.first_before(key, mode, *rank);
        let competing = competing.filter(|_| !self.lineage_covers(key, mode, lineage));
        slots.into_iter().chain(competing).min().map(|first| first.request)
    }

    /// The last waiter that precedes one item of a request. Waiters are granted in order, so this
    /// one probably blocks the item longest.
    pub(crate) fn last_predecessor(
        &self,
        Contender { lineage, rank, .. }: &Contender<'_>,
        item: &Item,
    ) -> Option<RequestId> {
        let slots = self.contested(item, lineage);
        let slots = slots.and_then(|(lock, class)| lock.last_ahead(class.capacity, *rank));
        let (key, mode) = (&item.key, item.ask.mode());
        let competing = self.tree.last_before(key, mode, *rank);
        let competing = competing.filter(|_| !self.lineage_covers(key, mode, lineage));
        slots.max(competing).map(|last| last.request)
    }

    /// The waiters that precede one item of a request.
    pub(crate) fn predecessors_of_item(
        &self,
        Contender { lineage, rank, .. }: &Contender<'_>,
        item: &Item,
    ) -> impl Iterator<Item = RequestId> + use<> {
        let (key, mode) = (&item.key, item.ask.mode());
        let mut ahead: BTreeSet<Rank> = BTreeSet::new();
        if let Some((lock, class)) = self.contested(item, lineage) {
            ahead.extend(lock.ahead(class.capacity, *rank));
        }
        if !self.lineage_covers(key, mode, lineage) {
            ahead.extend(self.tree.waiting(key, mode, Bound::Unbounded, Bound::Excluded(*rank)));
        }
        ahead.into_iter().map(|rank| rank.request)
    }
}

impl Lock {
    /// The first waiter for slots of this lock that precedes a request of this rank.
    ///
    /// A waiter whose own view has too few free slots lets a request with a larger view overtake it
    /// if that request fits. It blocks the request if it fits itself, or if its view is at least as
    /// large. Nothing overtakes a barrier.
    pub(crate) fn first_ahead(&self, capacity: u64, rank: Rank) -> Option<Rank> {
        let barrier = self.queue.barriers().next().map(|(id, _)| Rank::barrier(id));
        let others = self.queue.firsts().filter(|(class, _)| self.holds_back(*class, capacity));
        let firsts = barrier.into_iter().chain(others.map(|(_, first)| first));
        firsts.filter(|first| *first < rank).min()
    }

    /// All waiters that precede the request.
    fn ahead(&self, capacity: u64, rank: Rank) -> impl Iterator<Item = Rank> {
        let barriers = self.queue.barriers().map(|(id, _)| Rank::barrier(id));
        let others = self.queue.ranks().filter(move |(_, class)| self.holds_back(*class, capacity));
        barriers.chain(others.map(|(rank, _)| rank)).filter(move |other| *other < rank)
    }

    /// The last waiter that precedes the request.
    fn last_ahead(&self, capacity: u64, rank: Rank) -> Option<Rank> {
        let barriers = self.queue.barriers().map(|(id, _)| Rank::barrier(id));
        let barrier = barriers.filter(|other| *other < rank).max();
        if rank.tier == Tier::Barrier {
            return barrier;
        }
        let classes = self.queue.classes().filter(|class| self.holds_back(*class, capacity));
        classes.filter_map(|class| self.queue.last_before(class, rank)).max().or(barrier)
    }

    /// Whether a waiter of `class` that is ahead of a request with a view of `capacity` precedes
    /// it.
    fn holds_back(&self, class: Class, capacity: u64) -> bool {
        self.fits(class) || class.capacity >= capacity
    }
}
