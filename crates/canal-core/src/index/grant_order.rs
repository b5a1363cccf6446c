//! The waiters of one key, in the order in which they are granted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::{RequestId, WaiterState};

/// The number of slots that a waiter needs at a key, and the size that applies to it. Either all
/// waiters of a class fit or none does.
///
/// There is one class for each combination of capacity and count in use: usually two or three,
/// regardless of the number of waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class {
    /// The number of slots in service of the view that applies to the waiter.
    pub(crate) capacity: u64,
    /// The number of slots that it wants at once.
    pub(crate) count: u64,
    /// The number of slots in each bucket of the view, while a bucket is out of service; else 0.
    pub(crate) unit: u64,
}

/// A waiter's place in the queue: the waiter with the smallest rank is granted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) tier: Tier,
    /// All barriers have the same priority.
    pub(crate) priority: Reverse<i32>,
    /// Requests are numbered in the order of their arrival.
    pub(crate) request: RequestId,
}

/// Barriers precede all other waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    Barrier,
    Ordinary,
}

impl Rank {
    pub(crate) fn of(waiter: &WaiterState) -> Self {
        match waiter.barrier {
            true => Self::barrier(waiter.id),
            false => Self::ordinary(waiter.request.priority, waiter.id),
        }
    }

    pub(crate) fn ordinary(priority: i32, request: RequestId) -> Self {
        Self { tier: Tier::Ordinary, priority: Reverse(priority), request }
    }

    pub(crate) fn barrier(request: RequestId) -> Self {
        Self { tier: Tier::Barrier, priority: Reverse(0), request }
    }
}

/// The waiters for slots of one key. Inactive waiters (suspended or parked) are not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    classes: BTreeMap<Class, BTreeMap<Reverse<i32>, BTreeSet<RequestId>>>,
    barriers: BTreeMap<RequestId, Class>,
}

impl Queue {
    /// Adds a waiter, or removes it from any position, in logarithmic time.
    pub(crate) fn change(&mut self, class: Class, rank: Rank, is_added: bool) {
        let (Rank { tier, priority, request }, classes) = (rank, &mut self.classes);
        match (tier, is_added) {
            (Tier::Barrier, true) => drop(self.barriers.insert(request, class)),
            (Tier::Barrier, false) => drop(self.barriers.remove(&request)),
            (Tier::Ordinary, true) => {
                let arrivals = classes.entry(class).or_default().entry(priority).or_default();
                arrivals.insert(request);
            }
            (Tier::Ordinary, false) => {
                let Some(by_priority) = classes.get_mut(&class) else { return };
                let Some(arrivals) = by_priority.get_mut(&priority) else { return };
                arrivals.remove(&request);
                if arrivals.is_empty() {
                    by_priority.remove(&priority);
                }
                if by_priority.is_empty() {
                    classes.remove(&class);
                }
            }
        }
    }

    /// The barriers, in queue order.
    pub(crate) fn barriers(&self) -> impl Iterator<Item = (RequestId, Class)> + '_ {
        self.barriers.iter().map(|(request, class)| (*request, *class))
    }

    /// Each class with the rank of its first waiter.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = (Class, Rank)> + '_ {
        self.classes.iter().filter_map(|(class, by_priority)| {
            let (priority, arrivals) = by_priority.first_key_value()?;
            Some((*class, Rank::ordinary(priority.0, *arrivals.first()?)))
        })
    }

    /// The last waiter of a class that precedes a rank and is not a barrier.
    pub(crate) fn last_before(&self, class: Class, rank: Rank) -> Option<Rank> {
        let mut by_priority = self.classes.get(&class)?.range(..=rank.priority).rev();
        by_priority.find_map(|(priority, arrivals)| {
            let end = if *priority == rank.priority { rank.request } else { RequestId(u64::MAX) };
            Some(Rank::ordinary(priority.0, *arrivals.range(..end).next_back()?))
        })
    }

    /// The classes of the waiters that are not barriers.
    pub(crate) fn classes(&self) -> impl Iterator<Item = Class> + '_ {
        self.classes.keys().copied()
    }

    /// Whether a waiter is behind this rank.
    pub(crate) fn has_behind(&self, rank: Rank) -> bool {
        let last = |by_priority: &BTreeMap<Reverse<i32>, BTreeSet<RequestId>>| {
            let (priority, arrivals) = by_priority.last_key_value()?;
            Some(Rank::ordinary(priority.0, *arrivals.last()?))
        };
        self.classes.values().filter_map(last).any(|last| last > rank)
    }

    /// All waiters that are not barriers, each with its class.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = (Rank, Class)> {
        self.classes.iter().flat_map(|(class, by_priority)| {
            by_priority.iter().flat_map(|(priority, arrivals)| {
                arrivals.iter().map(|arrival| (Rank::ordinary(priority.0, *arrival), *class))
            })
        })
    }

    /// The waiters that arrived before `request` and are not barriers.
    pub(crate) fn arrived_before(
        &self,
        request: RequestId,
    ) -> impl Iterator<Item = RequestId> + '_ {
        let queues = self.classes.values().flat_map(BTreeMap::values);
        queues.flat_map(move |arrivals| arrivals.range(..request)).copied()
    }
}
