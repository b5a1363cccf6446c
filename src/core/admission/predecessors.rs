//! Which waiters go before a request, own blockers not looked at.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::admit::Verdict;
use crate::core::index::lock::Lock;
use crate::core::index::queue::{self, Class, Rank, Tier};
use crate::core::{Ask, FrameId, Item, Request, RequestId, Rules, Table, View};

impl Table {
    /// The waiters that bar a request.
    pub(in crate::core) fn barring(
        &self,
        asked: &Request,
        kin: &[FrameId],
        rank: Rank,
    ) -> BTreeSet<RequestId> {
        let items = asked.items.iter().enumerate();
        items.flat_map(|(item, _)| self.barring_item(asked, item, kin, rank)).collect()
    }

    /// The last of the waiters that bar one item of a request: they go in order, so it is likely to
    /// do so longest.
    pub(in crate::core) fn last_barring(
        &self,
        asked: &Request,
        item: usize,
        kin: &[FrameId],
        rank: Rank,
    ) -> Option<RequestId> {
        let item = asked.items.get(item)?;
        let (key, mode) = (&item.key, item.ask.mode());
        let counted = match item.ask {
            Ask::Counted { count, view } => self.tree.lock(key).map(|lock| (lock, count, view)),
            Ask::Read | Ask::Write => None,
        };
        if counted.is_some_and(|(lock, count, _)| self.base(lock, key, count, kin).is_some()) {
            return None;
        }
        let slots = counted.and_then(|(lock, _, view)| {
            lock.last_ahead(self.view_of(key, view).map_or(0, View::capacity), rank, self.rules)
        });
        let competing =
            if self.covers(key, mode, kin) { None } else { self.tree.last_before(key, mode, rank) };
        let last = slots.max(competing)?;
        Some(queue::request_at(self.rules, last.place))
    }

    /// The waiters that are not older than one, the oldest first.
    pub fn waiters_from(&self, id: RequestId) -> impl Iterator<Item = RequestId> {
        self.waiters.range(id..).map(|(request, _)| *request)
    }

    /// The first of the waiters because of which a waiter is not granted what nobody keeps from it.
    #[must_use]
    pub fn first_ahead(&self, request: RequestId) -> Option<RequestId> {
        let waiter = self.waiters.get(&request).filter(|waiter| !self.is_aside(waiter))?;
        self.first_barring(&waiter.request, &self.kin(waiter.frame, None), self.rank(waiter))
    }

    /// The same of a request that would come next.
    #[must_use]
    pub fn first_ahead_of(&self, asked: &Request) -> Option<RequestId> {
        let next = RequestId(self.revision.0 + 1);
        let frame = self.frame_of(asked.host, &asked.owner).unwrap_or(FrameId(next.0));
        let kin = self.kin(frame, self.outer(asked));
        self.first_barring(
            asked,
            &kin,
            Rank::ordinary(asked.priority, queue::place(self.rules, next)),
        )
    }

    fn first_barring(&self, asked: &Request, kin: &[FrameId], rank: Rank) -> Option<RequestId> {
        let Verdict::Barred(item) = self.verdict(asked, kin, rank) else { return None };
        let Item { key, ask } = asked.items.get(item)?;
        let slots = match *ask {
            Ask::Counted { view, .. } => self.tree.lock(key).and_then(|lock| {
                lock.first_ahead(
                    self.view_of(key, view).map_or(0, View::capacity),
                    rank,
                    self.rules,
                )
            }),
            Ask::Read | Ask::Write => None,
        };
        let mode = ask.mode();
        let competing = if self.covers(key, mode, kin) {
            None
        } else {
            self.tree.first_before(key, mode, rank)
        };
        let first = slots.into_iter().chain(competing).min()?;
        Some(queue::request_at(self.rules, first.place))
    }

    /// The waiters that bar one item of a request.
    pub(in crate::core) fn barring_item(
        &self,
        asked: &Request,
        item: usize,
        kin: &[FrameId],
        rank: Rank,
    ) -> Vec<RequestId> {
        let Some(item) = asked.items.get(item) else { return Vec::new() };
        let (key, mode) = (&item.key, item.ask.mode());
        let mut ahead: BTreeSet<Rank> = BTreeSet::new();
        if let Ask::Counted { count, view } = item.ask
            && let Some(lock) = self.tree.lock(key)
        {
            if self.base(lock, key, count, kin).is_some() {
                return Vec::new();
            }
            let capacity = self.view_of(key, view).map_or(0, View::capacity);
            ahead.extend(lock.ahead(capacity, rank, self.rules));
        }
        if !self.covers(key, mode, kin) {
            ahead.extend(self.tree.waiting(key, mode, Bound::Unbounded, Bound::Excluded(rank)));
        }
        ahead.into_iter().map(|rank| queue::request_at(self.rules, rank.place)).collect()
    }
}

impl Lock {
    /// Whether a waiter for slots of this lock goes before a request of this rank, own blockers
    /// not looked at.
    ///
    /// A waiter that does not fit its own view lets a larger view pass that fits; one that fits,
    /// or whose view is as large, does not. Barriers let nobody pass.
    pub(in crate::core) fn bars(&self, capacity: u64, rank: Rank) -> bool {
        let first = self.queue.barriers().next();
        match (first, rank.tier) {
            (Some((first, _)), Tier::Barrier) => return first.0 < rank.place,
            (Some(_), Tier::Ordinary) => return true,
            (None, Tier::Barrier) => return false,
            (None, Tier::Ordinary) => {}
        }
        self.queue.firsts().any(|(class, first)| first < rank && self.holds_back(class, capacity))
    }

    /// The waiters that do.
    fn ahead(&self, capacity: u64, rank: Rank, rules: Rules) -> Vec<Rank> {
        let barriers = self.queue.barriers().map(|(id, _)| Rank::barrier(queue::place(rules, id)));
        let mut ahead: Vec<Rank> = barriers.filter(|other| *other < rank).collect();
        if rank.tier == Tier::Ordinary {
            let others = self.queue.ranks().into_iter().filter(|(other, _)| *other < rank);
            let others = others.filter(|(_, class)| self.holds_back(*class, capacity));
            ahead.extend(others.map(|(rank, _)| rank));
        }
        ahead
    }

    /// The first of the waiters that do.
    fn first_ahead(&self, capacity: u64, rank: Rank, rules: Rules) -> Option<Rank> {
        let barrier = self.queue.barriers().next();
        let barrier = barrier.map(|(id, _)| Rank::barrier(queue::place(rules, id)));
        let others = self.queue.firsts().filter(|(class, _)| self.holds_back(*class, capacity));
        let others = others.map(|(_, first)| first).filter(|_| rank.tier == Tier::Ordinary);
        barrier.into_iter().chain(others).filter(|first| *first < rank).min()
    }

    /// The last of the waiters that do.
    fn last_ahead(&self, capacity: u64, rank: Rank, rules: Rules) -> Option<Rank> {
        let barriers = self.queue.barriers().map(|(id, _)| Rank::barrier(queue::place(rules, id)));
        let barrier = barriers.filter(|other| *other < rank).max();
        if rank.tier == Tier::Barrier {
            return barrier;
        }
        let classes = self.queue.classes().filter(|class| self.holds_back(*class, capacity));
        classes.filter_map(|class| self.queue.last_before(class, rank)).max().or(barrier)
    }

    /// Whether a waiter of `class` that is ahead of a request with a view of `capacity` bars it.
    fn holds_back(&self, class: Class, capacity: u64) -> bool {
        self.fits(class) || self.capacity(class) >= capacity
    }
}
