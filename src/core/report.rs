//! What status and messages tell of a table.

use std::ops::Bound;

use super::lock::Lock;
use super::queue;
use super::{Ask, By, Key, Kind, RequestId, Table, Token, View, WaiterState, WaiterStatus};

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReport {
    /// The kind in use, else that of the stored view.
    pub kind: Option<Kind>,
    /// Slots held by everyone.
    pub held: u64,
    /// The lock's own number (slots kind), the stored view, or of the canal kind the largest view
    /// among holders and waiters.
    pub view: Option<View>,
    /// The stored view.
    pub stored: Option<View>,
    /// Its holds, oldest first.
    pub holders: Vec<Token>,
    /// Its waiters, in the order in which they are served.
    pub waiters: Vec<RequestId>,
}

/// One of those who keep a waiting request from being granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The item that it keeps.
    pub item: usize,
    /// That item's key.
    pub key: Key,
    /// What it is.
    pub by: By,
}

/// What keeps a waiting request from being granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The item that keeps it.
    pub item: usize,
    /// That item's key.
    pub key: Key,
    /// What.
    pub reason: Reason,
}

/// What keeps a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// So many slots are held of so many.
    Full {
        /// Slots held.
        held: u64,
        /// The capacity of its view.
        capacity: u64,
    },
    /// Somebody holds it, or a key above or below it, in a way that conflicts.
    Conflict {
        /// One of the holds.
        hold: Token,
        /// How many there are.
        holds: u64,
    },
    /// An earlier (or higher, or barrier) waiter goes first.
    Behind {
        /// Which.
        waiter: RequestId,
        /// Whether that one is a barrier.
        barrier: bool,
    },
    /// The stored view that it follows has no slots.
    Drained,
    /// It wants more slots at once than the stored view that it follows has.
    LargerThanLock {
        /// What it wants.
        count: u64,
        /// What the lock has.
        capacity: u64,
    },
    /// Its process is stopped.
    Suspended,
    /// Its daemon started anew and it did not come back yet.
    Detached,
}

impl Table {
    /// The keys in use or with a stored view that `prefix` covers (all without one), in order.
    /// Takes no longer than their number asks for.
    pub fn keys(&self, prefix: Option<&Key>) -> impl Iterator<Item = &Key> {
        let all = prefix.is_none().then(|| self.locks.keys());
        let own = prefix.and_then(|prefix| self.locks.get_key_value(prefix));
        let below = prefix.map(|prefix| {
            // What begins with `prefix/`: `0` is the character after `/`.
            let (first, end) = (format!("{prefix}/"), format!("{prefix}0"));
            let range = (Bound::Included(first.as_str()), Bound::Excluded(end.as_str()));
            self.locks.range::<str, _>(range)
        });
        let covered = own.into_iter().chain(below.into_iter().flatten()).map(|(key, _)| key);
        all.into_iter().flatten().chain(covered)
    }

    /// What is known of a key.
    #[must_use]
    pub fn report(&self, key: &Key) -> KeyReport {
        let Some(lock) = self.locks.get(key) else {
            let (holders, waiters) = Default::default();
            return KeyReport { kind: None, held: 0, view: None, stored: None, holders, waiters };
        };
        let waiters = self.served(key);
        let largest = || {
            let held = lock.holds.iter().filter_map(|token| self.hold(*token));
            let held = held.flat_map(|hold| &hold.items).filter(|item| item.key == *key);
            let asked = waiters.iter().filter_map(|id| self.waiter(*id));
            let asked = asked.flat_map(|waiter| &waiter.request.items).filter(|i| i.key == *key);
            let asked = asked.filter_map(|item| self.view_of(key, &item.ask));
            held.filter_map(|item| item.view).chain(asked).max_by_key(|view| view.capacity())
        };
        KeyReport {
            kind: lock.kind_in_force(),
            held: lock.held,
            view: lock.own.or(lock.stored).or_else(largest),
            stored: lock.stored,
            holders: lock.holds.iter().copied().collect(),
            waiters,
        }
    }

    /// The holds of a key, oldest first.
    pub fn holders(&self, key: &Key) -> impl Iterator<Item = Token> {
        self.locks.get(key).into_iter().flat_map(|lock| lock.holds.iter().copied())
    }

    /// Slots of a key that are held by everyone.
    #[must_use]
    pub fn held_of(&self, key: &Key) -> u64 {
        self.locks.get(key).map_or(0, |lock| lock.held)
    }

    /// The view that callers follow who state none: the lock's own, else the stored one.
    #[must_use]
    pub fn own_view(&self, key: &Key) -> Option<View> {
        self.locks.get(key).and_then(|lock| lock.own.or(lock.stored))
    }

    /// The stored view of a key.
    #[must_use]
    pub fn stored(&self, key: &Key) -> Option<View> {
        self.locks.get(key).and_then(|lock| lock.stored)
    }

    /// How many wait for a key.
    #[must_use]
    pub fn waiting_for(&self, key: &Key) -> usize {
        self.locks.get(key).map_or(0, |lock| lock.uses - lock.holds.len())
    }

    /// Everyone who waits for a key, in the order in which they are served.
    #[must_use]
    pub fn served(&self, key: &Key) -> Vec<RequestId> {
        let Some(lock) = self.locks.get(key) else { return Vec::new() };
        let mut aside: Vec<_> = lock.aside.iter().filter_map(|id| self.waiters.get(id)).collect();
        aside.sort_by_key(|waiter| (!waiter.barrier, self.rank(waiter)));
        let barriers = lock.queue.barriers().map(|(id, _)| (false, None, id));
        let ranks = lock.queue.ranks().into_iter();
        let ranks =
            ranks.map(|(rank, _)| (true, Some(rank), queue::request_at(self.rules, rank.place)));
        let aside = aside.into_iter().map(|waiter| {
            let rank = (!waiter.barrier).then(|| self.rank(waiter));
            (!waiter.barrier, rank, waiter.id)
        });
        let mut all: Vec<_> = barriers.chain(ranks).chain(aside).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, _, id)| id).collect()
    }

    /// A waiter's place in the queue of an item's key: 1 is the next to be served. Linear in the
    /// length of the queue.
    #[must_use]
    pub fn position(&self, request: RequestId, item: usize) -> Option<usize> {
        let key = &self.waiters.get(&request)?.request.items.get(item)?.key;
        self.served(key).iter().position(|id| *id == request).map(|index| index + 1)
    }

    /// Who keeps a waiting request from being granted: of each item that is not free, everyone
    /// who holds in the way, or else everyone who goes first. Linear in their number.
    #[must_use]
    pub fn blockers(&self, request: RequestId) -> Vec<Blocker> {
        let _ = request;
        Vec::new()
    }

    /// What keeps a waiting request from being granted.
    #[must_use]
    pub fn why(&self, request: RequestId) -> Option<Why> {
        let waiter = self.waiters.get(&request)?;
        let why = |item: usize, reason| {
            Some(Why { item, key: waiter.request.items.get(item)?.key.clone(), reason })
        };
        match waiter.status {
            WaiterStatus::Suspended => return why(0, Reason::Suspended),
            WaiterStatus::Detached => return why(0, Reason::Detached),
            WaiterStatus::Active => {}
        }
        let items = waiter.request.items.iter().enumerate();
        let reasons = items.filter_map(|(index, item)| {
            let Ask::Counted { count, view } = item.ask else { return None };
            let lock = self.locks.get(&item.key)?;
            Some((index, self.reason(waiter, lock, count, view)?))
        });
        // What is parked keeps it whatever else is free; slots before order.
        let (index, reason) = reasons.min_by_key(|(index, reason)| (severity(*reason), *index))?;
        why(index, reason)
    }

    fn reason(
        &self,
        waiter: &WaiterState,
        lock: &Lock,
        count: u64,
        view: Option<View>,
    ) -> Option<Reason> {
        let class = lock.class_of(count, view);
        let capacity = lock.capacity(class);
        if lock.parks(class) {
            let larger = Reason::LargerThanLock { count, capacity };
            return Some(if capacity == 0 { Reason::Drained } else { larger });
        }
        if !lock.fits(class) {
            return Some(Reason::Full { held: lock.held, capacity });
        }
        let barrier = waiter.barrier.then_some(waiter.id);
        let first = self.ahead(lock, capacity, self.rank(waiter), barrier).next()?;
        let barrier = self.waiters.get(&first).is_some_and(|first| first.barrier);
        Some(Reason::Behind { waiter: first, barrier })
    }
}

fn severity(reason: Reason) -> u8 {
    match reason {
        Reason::Suspended | Reason::Detached => 0,
        Reason::Drained | Reason::LargerThanLock { .. } => 1,
        Reason::Full { .. } | Reason::Conflict { .. } => 2,
        Reason::Behind { .. } => 3,
    }
}
