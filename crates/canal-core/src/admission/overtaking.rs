//! Finds the waiters that precede a request. It ignores the bypass of blockers that wait for the
//! request's own session ([`crate::deadlock`]).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Bound;

use super::admit::Admission;
use crate::index::grant_order::{Class, Rank, Tier};
use crate::index::lock::Lock;
use crate::model::InvalidOutcome;
use crate::{Entry, FrameId, Granted, Item, Mode, Request, RequestId, Table};

impl Table {
    /// The waiters that precede a request.
    pub(crate) fn predecessors(
        &self,
        asked: &Request,
        lineage: &[FrameId],
        rank: Rank,
    ) -> BTreeSet<RequestId> {
        let items = asked.items.iter().enumerate();
        items.flat_map(|(item, _)| self.predecessors_of_item(asked, item, lineage, rank)).collect()
    }

    /// The waiters that a grant overtakes: those that arrived before its request, compete with it
    /// for an item and do not precede it. Omits predecessors, because they wait for the session of
    /// the request. For the same reason, omits competitors for an item that its lineage covers.
    pub(crate) fn passed_by(
        &self,
        entry: &Entry,
        granted: &Granted,
    ) -> Result<BTreeSet<RequestId>, InvalidOutcome> {
        let mut passed = BTreeSet::new();
        if self.waiters.is_empty() {
            return Ok(passed);
        }
        let id = granted.request;
        let (asked, rank) = match self.waiters.get(&id) {
            Some(waiter) => (Cow::Borrowed(&*waiter.request), self.rank(waiter)),
            None => {
                let asked = self.sized(self.asked(entry, id)?);
                let rank = Rank::ordinary(asked.priority, id);
                (asked, rank)
            }
        };
        let lineage = self.lineage(granted.frame, self.live_parent(&asked));
        let items = std::iter::zip(&asked.items, &granted.items);
        for (item, _) in items.filter(|(_, given)| !given.shared) {
            let (key, mode) = (&item.key, item.ask.mode());
            if let Some(lock) = self.tree.lock(key).filter(|_| mode == Mode::Counted) {
                passed.extend(lock.queue.arrived_before(rank.request));
            }
            let mut behind = self.tree.arrived_before_and_behind(key, mode, rank).peekable();
            if behind.peek().is_some() && !self.lineage_covers(key, mode, &lineage) {
                passed.extend(behind.map(|rank| rank.request));
            }
        }
        if granted.bypassed_blockers {
            let ahead = self.predecessors(&asked, &lineage, rank);
            passed.retain(|waiter| !ahead.contains(waiter));
        }
        Ok(passed)
    }

    /// The last waiter that precedes one item of a request. Waiters are granted in order, so this
    /// one probably blocks the item longest.
    pub(crate) fn last_predecessor(
        &self,
        asked: &Request,
        item: usize,
        lineage: &[FrameId],
        rank: Rank,
    ) -> Option<RequestId> {
        let item = asked.items.get(item)?;
        let (key, mode) = (&item.key, item.ask.mode());
        let wanted = item.ask.counted();
        let counted = wanted.and_then(|wanted| Some((self.tree.lock(key)?, wanted)));
        if counted.is_some_and(|(lock, (count, _))| {
            self.shareable_hold(lock, key, count, lineage).is_some()
        }) {
            return None;
        }
        let slots = counted.and_then(|(lock, (count, own))| {
            lock.last_ahead(lock.class_of(count, own).capacity, rank)
        });
        let competing = if self.lineage_covers(key, mode, lineage) {
            None
        } else {
            self.tree.last_before(key, mode, rank)
        };
        let last = slots.max(competing)?;
        Some(last.request)
    }

    /// The waiters that arrived with `id` or later, oldest first.
    pub fn waiters_from(&self, id: RequestId) -> impl Iterator<Item = RequestId> {
        self.waiters.range(id..).map(|(request, _)| *request)
    }

    /// The first predecessor of a waiter that is not blocked by a hold.
    #[must_use]
    pub fn first_ahead(&self, request: RequestId) -> Option<RequestId> {
        let waiter = self.waiters.get(&request).filter(|waiter| !self.is_inactive(waiter))?;
        self.first_predecessor(
            &waiter.request,
            &self.lineage(waiter.frame, None),
            self.rank(waiter),
        )
    }

    /// The first predecessor of a request that arrives next.
    #[must_use]
    pub fn first_ahead_of(&self, asked: &Request) -> Option<RequestId> {
        let next = RequestId(self.revision.0 + 1);
        let frame = self.frame_of(asked.host, &asked.owner).unwrap_or(FrameId(next.0));
        let lineage = self.lineage(frame, self.live_parent(asked));
        self.first_predecessor(&self.sized(asked), &lineage, Rank::ordinary(asked.priority, next))
    }

    fn first_predecessor(
        &self,
        asked: &Request,
        lineage: &[FrameId],
        rank: Rank,
    ) -> Option<RequestId> {
        let Admission::Behind(item) = self.admission(asked, lineage, rank) else { return None };
        let Item { key, ask } = asked.items.get(item)?;
        let slots = ask.counted().and_then(|(count, own)| {
            let lock = self.tree.lock(key)?;
            lock.first_ahead(lock.class_of(count, own).capacity, rank)
        });
        let mode = ask.mode();
        let competing = if self.lineage_covers(key, mode, lineage) {
            None
        } else {
            self.tree.first_before(key, mode, rank)
        };
        let first = slots.into_iter().chain(competing).min()?;
        Some(first.request)
    }

    /// The waiters that precede one item of a request.
    pub(crate) fn predecessors_of_item(
        &self,
        asked: &Request,
        item: usize,
        lineage: &[FrameId],
        rank: Rank,
    ) -> Vec<RequestId> {
        let Some(item) = asked.items.get(item) else { return Vec::new() };
        let (key, mode) = (&item.key, item.ask.mode());
        let mut ahead: BTreeSet<Rank> = BTreeSet::new();
        if let Some((count, own)) = item.ask.counted()
            && let Some(lock) = self.tree.lock(key)
        {
            if self.shareable_hold(lock, key, count, lineage).is_some() {
                return Vec::new();
            }
            ahead.extend(lock.ahead(lock.class_of(count, own).capacity, rank));
        }
        if !self.lineage_covers(key, mode, lineage) {
            ahead.extend(self.tree.waiting(key, mode, Bound::Unbounded, Bound::Excluded(rank)));
        }
        ahead.into_iter().map(|rank| rank.request).collect()
    }
}

impl Lock {
    /// Whether a waiter for slots of this lock precedes a request of this rank.
    ///
    /// A waiter whose own view has too few free slots lets a request with a larger view overtake it
    /// if that request fits. It blocks the request if it fits itself, or if its view is at least as
    /// large. Nothing overtakes a barrier.
    pub(crate) fn is_preceded(&self, capacity: u64, rank: Rank) -> bool {
        let first = self.queue.barriers().next();
        match (first, rank.tier) {
            (Some((first, _)), Tier::Barrier) => return first < rank.request,
            (Some(_), Tier::Ordinary) => return true,
            (None, Tier::Barrier) => return false,
            (None, Tier::Ordinary) => {}
        }
        self.queue.firsts().any(|(class, first)| first < rank && self.holds_back(class, capacity))
    }

    /// All waiters that precede the request.
    fn ahead(&self, capacity: u64, rank: Rank) -> Vec<Rank> {
        let barriers = self.queue.barriers().map(|(id, _)| Rank::barrier(id));
        let mut ahead: Vec<Rank> = barriers.filter(|other| *other < rank).collect();
        if rank.tier == Tier::Ordinary {
            let others = self.queue.ranks().into_iter().filter(|(other, _)| *other < rank);
            let others = others.filter(|(_, class)| self.holds_back(*class, capacity));
            ahead.extend(others.map(|(rank, _)| rank));
        }
        ahead
    }

    /// The first waiter that precedes the request.
    fn first_ahead(&self, capacity: u64, rank: Rank) -> Option<Rank> {
        let barrier = self.queue.barriers().next();
        let barrier = barrier.map(|(id, _)| Rank::barrier(id));
        let others = self.queue.firsts().filter(|(class, _)| self.holds_back(*class, capacity));
        let others = others.map(|(_, first)| first).filter(|_| rank.tier == Tier::Ordinary);
        barrier.into_iter().chain(others).filter(|first| *first < rank).min()
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
