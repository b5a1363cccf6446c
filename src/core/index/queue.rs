//! The waiters of one key.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::arrival_queue::{Lane, Place};
use crate::core::{RequestId, Rules};

/// What a waiter wants of a key. All waiters of a class fit or do not fit together.
///
/// There are as many classes as there are different views in use: two or three, whatever the
/// number of waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) struct Class {
    /// The capacity of the view that it states; `None` follows the lock's own.
    pub(in crate::core) capacity: Option<u64>,
    /// How many slots it wants at once.
    pub(in crate::core) count: u64,
}

/// Where a waiter stands among all waiters: the smallest is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) struct Rank {
    pub(in crate::core) tier: Tier,
    /// That of all barriers is the same.
    pub(in crate::core) priority: Reverse<i32>,
    pub(in crate::core) place: Place,
}

/// Barriers go before all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum Tier {
    Barrier,
    Ordinary,
}

impl Rank {
    pub(in crate::core) fn ordinary(priority: i32, place: Place) -> Self {
        Self { tier: Tier::Ordinary, priority: Reverse(priority), place }
    }

    pub(in crate::core) fn barrier(place: Place) -> Self {
        Self { tier: Tier::Barrier, priority: Reverse(0), place }
    }
}

/// The waiters of one key. Waiters that are set aside (suspended, parked) are not in it.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Queue {
    classes: BTreeMap<Class, BTreeMap<Reverse<i32>, Lane>>,
    barriers: BTreeMap<RequestId, Class>,
}

/// The place of a request under given rules.
pub(in crate::core) fn place(rules: Rules, request: RequestId) -> Place {
    match rules {
        Rules::Current => request.0,
        Rules::NewestFirst => u64::MAX - 1 - request.0,
    }
}

/// The request at a place.
pub(in crate::core) fn request_at(rules: Rules, place: Place) -> RequestId {
    match rules {
        Rules::Current => RequestId(place),
        Rules::NewestFirst => RequestId(u64::MAX - 1 - place),
    }
}

impl Queue {
    pub(in crate::core) fn insert(&mut self, class: Class, rank: Rank, overtaken: u32) {
        let lane = self.classes.entry(class).or_default().entry(rank.priority).or_default();
        lane.insert(rank.place, overtaken);
    }

    /// Takes a waiter out, wherever it stands; logarithmic.
    pub(in crate::core) fn remove(&mut self, class: Class, rank: Rank) -> bool {
        let Some(lanes) = self.classes.get_mut(&class) else { return false };
        let Some(lane) = lanes.get_mut(&rank.priority) else { return false };
        let removed = lane.remove(rank.place);
        if lane.is_empty() {
            lanes.remove(&rank.priority);
            if lanes.is_empty() {
                self.classes.remove(&class);
            }
        }
        removed
    }

    pub(in crate::core) fn insert_barrier(&mut self, request: RequestId, class: Class) {
        self.barriers.insert(request, class);
    }

    pub(in crate::core) fn remove_barrier(&mut self, request: RequestId) -> bool {
        self.barriers.remove(&request).is_some()
    }

    pub(in crate::core) fn overtaken(&self, class: Class, rank: Rank) -> u32 {
        self.classes
            .get(&class)
            .and_then(|lanes| lanes.get(&rank.priority))
            .map_or(0, |lane| lane.count(rank.place))
    }

    /// The barriers in the order in which they are served.
    pub(in crate::core) fn barriers(&self) -> impl Iterator<Item = (RequestId, Class)> + '_ {
        self.barriers.iter().map(|(request, class)| (*request, *class))
    }

    /// Each class with the rank of its first waiter.
    pub(in crate::core) fn firsts(&self) -> impl Iterator<Item = (Class, Rank)> + '_ {
        self.classes.iter().filter_map(|(class, lanes)| {
            let (priority, lane) = lanes.first_key_value()?;
            Some((*class, Rank::ordinary(priority.0, lane.first()?)))
        })
    }

    /// The last waiter of a class that goes before a rank and is no barrier.
    pub(in crate::core) fn last_before(&self, class: Class, rank: Rank) -> Option<Rank> {
        let mut lanes = self.classes.get(&class)?.range(..=rank.priority).rev();
        lanes.find_map(|(priority, lane)| {
            let end = if *priority == rank.priority { rank.place } else { Place::MAX };
            Some(Rank::ordinary(priority.0, lane.last_before(end)?))
        })
    }

    /// The classes of those who wait and are no barriers.
    pub(in crate::core) fn classes(&self) -> impl Iterator<Item = Class> + '_ {
        self.classes.keys().copied()
    }

    /// Whether somebody has a rank behind this one.
    pub(in crate::core) fn has_behind(&self, rank: Rank) -> bool {
        let last = |lanes: &BTreeMap<Reverse<i32>, Lane>| {
            let (priority, lane) = lanes.last_key_value()?;
            Some(Rank::ordinary(priority.0, lane.places().next_back()?))
        };
        self.classes.values().filter_map(last).any(|last| last > rank)
    }

    /// All waiters that are no barriers, in the order in which they are served. For reports and
    /// rare analyses: it sorts.
    pub(in crate::core) fn ranks(&self) -> Vec<(Rank, Class)> {
        let mut ranks = Vec::new();
        for (class, lanes) in &self.classes {
            for (priority, lane) in lanes {
                let rank = |place| Rank::ordinary(priority.0, place);
                ranks.extend(lane.places().map(|place| (rank(place), *class)));
            }
        }
        ranks.sort_unstable();
        ranks
    }

    /// Counts one overtaking for every waiter that arrived before `place`.
    pub(in crate::core) fn overtake(&mut self, place: Place) {
        for lane in self.classes.values_mut().flat_map(BTreeMap::values_mut) {
            lane.overtake_before(place);
        }
    }

    /// A place whose waiter was overtaken `max` times or more.
    pub(in crate::core) fn overtaken_enough(&self, max: u32) -> Option<Place> {
        let lanes = self.classes.values().flat_map(BTreeMap::values);
        let enough: BTreeSet<Place> =
            lanes.filter(|lane| lane.first_count() >= max).filter_map(Lane::first).collect();
        enough.first().copied()
    }
}
