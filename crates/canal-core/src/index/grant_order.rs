//! The order in which waiters are granted.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

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
    /// Barriers precede all other waiters.
    pub(crate) is_ordinary: bool,
    /// All barriers have the same priority.
    pub(crate) priority: Reverse<i32>,
    /// Requests are numbered in the order of their arrival.
    pub(crate) request: RequestId,
}

impl Rank {
    /// Every barrier precedes it, and no other waiter does.
    pub(crate) const AFTER_BARRIERS: Self =
        Self { is_ordinary: true, priority: Reverse(i32::MAX), request: RequestId(0) };

    pub(crate) fn of(waiter: &WaiterState) -> Self {
        match waiter.barrier {
            true => Self::barrier(waiter.id),
            false => Self::ordinary(waiter.request.priority, waiter.id),
        }
    }

    pub(crate) fn ordinary(priority: i32, request: RequestId) -> Self {
        Self { is_ordinary: true, priority: Reverse(priority), request }
    }

    pub(crate) fn barrier(request: RequestId) -> Self {
        Self { is_ordinary: false, priority: Reverse(0), request }
    }
}

/// Waiters in the order in which they are granted, each with the number of its items. Inactive
/// waiters (suspended or parked) are not in it.
pub(crate) type Waits = BTreeMap<Rank, usize>;

/// Adds an item of a waiter, or removes it.
pub(crate) fn change_waits(waits: &mut Waits, rank: Rank, is_added: bool) {
    if is_added {
        *waits.entry(rank).or_default() += 1;
    } else if let Entry::Occupied(mut items) = waits.entry(rank) {
        *items.get_mut() -= 1;
        if *items.get() == 0 {
            items.remove();
        }
    }
}

/// The waiters of lower priority than a rank that arrived before a request. It looks at each
/// priority once, regardless of how many waiters arrived later.
pub(crate) fn arrived_before(
    waits: &Waits,
    rank: Rank,
    request: RequestId,
) -> impl Iterator<Item = RequestId> {
    let next_priority = |of: &Rank| {
        let last = Bound::Excluded(Rank { request: RequestId(u64::MAX), ..*of });
        waits.range((last, Bound::Unbounded)).next().map(|(rank, _)| *rank)
    };
    let firsts = std::iter::successors(next_priority(&rank), next_priority);
    firsts.flat_map(move |first| {
        let from = Rank { request: RequestId(0), ..first };
        waits.range(from..Rank { request, ..first }).map(|(rank, _)| rank.request)
    })
}
