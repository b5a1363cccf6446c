//! What status and messages tell of a table.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::core::index::key_tree::conflict;
use crate::core::index::node::Node;
use crate::core::index::queue::{self, Rank};
use crate::core::{
    Ask, By, FrameId, HeldItem, Item, Key, Kind, Mode, Request, RequestId, Table, Token, View,
    WaiterState, WaiterStatus,
};

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
    /// The table grants nothing before its recovery is over.
    Recovering,
}

impl Table {
    /// The keys in use or with a stored view that `prefix` covers (all without one), in order.
    /// Takes no longer than their number asks for.
    pub fn keys<'a>(&'a self, prefix: Option<&Key>) -> impl Iterator<Item = &'a Key> + use<'a> {
        let wanted = prefix.cloned();
        let (from, to) = prefix.map(Key::range).unwrap_or((Bound::Unbounded, Bound::Unbounded));
        let range = (from.as_ref().map(String::as_str), to.as_ref().map(String::as_str));
        let keys = self.tree.keys(range);
        keys.filter(move |key| wanted.as_ref().is_none_or(|prefix| prefix.covers(key)))
    }

    /// Takes the keys in use for those of the same text, so that thousands who want one key keep its
    /// text once. Not as long as nobody waits.
    pub fn share_keys(&self, items: &mut [Item]) {
        if self.waiters.is_empty() {
            return;
        }
        for item in items {
            if let Some(key) = self.tree.key(&item.key) {
                item.key = key.clone();
            }
        }
    }

    /// What is known of a key.
    #[must_use]
    pub fn report(&self, key: &Key) -> KeyReport {
        let (holders, waiters) = (self.holders(key).collect(), self.served(key));
        let Some(lock) = self.tree.lock(key) else {
            return KeyReport { kind: None, held: 0, view: None, stored: None, holders, waiters };
        };
        let largest = || {
            let held = self.holders(key).filter_map(|token| self.hold(token));
            let held = held.flat_map(|hold| &hold.items).filter(|item| item.key == *key);
            let asked = waiters.iter().filter_map(|id| self.waiter(*id));
            let asked = asked.flat_map(|waiter| &waiter.request.items).filter(|i| i.key == *key);
            let asked = asked.filter_map(|item| match item.ask {
                Ask::Counted { view, .. } => self.view_of(key, view),
                Ask::Read | Ask::Write => None,
            });
            held.filter_map(|item| item.view).chain(asked).max_by_key(|view| view.capacity())
        };
        let view = lock.own.or(lock.stored).or_else(largest);
        let (kind, held, stored) = (lock.kind_in_force(), lock.held, lock.stored);
        KeyReport { kind, held, view, stored, holders, waiters }
    }

    /// The holds of a key, oldest first.
    pub fn holders(&self, key: &Key) -> impl Iterator<Item = Token> {
        self.tree.node(key).into_iter().flat_map(|node| node.holds.iter().copied())
    }

    /// Slots of a key that are held by everyone.
    #[must_use]
    pub fn held_of(&self, key: &Key) -> u64 {
        self.tree.lock(key).map_or(0, |lock| lock.held)
    }

    /// The view that callers follow who state none: the lock's own, else the stored one.
    #[must_use]
    pub fn own_view(&self, key: &Key) -> Option<View> {
        self.tree.lock(key).and_then(|lock| lock.own.or(lock.stored))
    }

    /// The stored view of a key.
    #[must_use]
    pub fn stored(&self, key: &Key) -> Option<View> {
        self.tree.lock(key).and_then(|lock| lock.stored)
    }

    /// How many wait for a key.
    #[must_use]
    pub fn waiting_for(&self, key: &Key) -> usize {
        self.tree.node(key).map_or(0, Node::waiting)
    }

    /// Everyone who waits for a key, in the order in which they are served.
    #[must_use]
    pub fn served(&self, key: &Key) -> Vec<RequestId> {
        let aside = self.tree.node(key).into_iter().flat_map(|node| &node.aside);
        let aside = aside.filter_map(|id| self.waiters.get(id)).map(|waiter| self.rank(waiter));
        let reads = self.tree.waiting_here(key, Mode::Read);
        let mut all: Vec<Rank> =
            reads.chain(self.tree.waiting_here(key, Mode::Write)).chain(aside).collect();
        all.sort_unstable();
        all.into_iter().map(|rank| queue::request_at(self.rules, rank.place)).collect()
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
        let Some(waiter) = self.waiters.get(&request) else { return Vec::new() };
        let kin = self.kin(waiter.frame, None);
        let items = 0..waiter.request.items.len();
        items.flat_map(|item| self.blockers_of(waiter, item, &kin)).collect()
    }

    fn blockers_of(&self, waiter: &WaiterState, item: usize, kin: &[FrameId]) -> Vec<Blocker> {
        let Some(Item { key, .. }) = waiter.request.items.get(item) else { return Vec::new() };
        let blocker = |by| Blocker { item, key: key.clone(), by };
        let holds = self.holds_in_the_way(waiter, item, kin);
        if !holds.is_empty() {
            let by = |token: Token| Some(By::Hold(token, self.hold(token)?.frame));
            return holds.into_iter().filter_map(by).map(blocker).collect();
        }
        let ahead = self.barring_item(&waiter.request, item, kin, self.rank(waiter));
        let by = |id: RequestId| Some(By::Waiter(id, self.waiter(id)?.frame));
        ahead.into_iter().filter_map(by).map(blocker).collect()
    }

    /// Those who hold one item of a waiting request in a way that keeps it.
    pub(in crate::core) fn holds_in_the_way(
        &self,
        waiter: &WaiterState,
        item: usize,
        kin: &[FrameId],
    ) -> BTreeSet<Token> {
        let Some(Item { key, ask }) = waiter.request.items.get(item) else {
            return BTreeSet::new();
        };
        let mut holds: BTreeSet<Token> = self.conflicting_holds(key, ask.mode(), kin).collect();
        if let Ask::Counted { count, view } = *ask
            && let Some(lock) = self.tree.lock(key)
            && !lock.fits(lock.class_of(count, view))
            && self.base(lock, key, count, kin).is_none()
        {
            let holders = self.holders(key);
            holds.extend(holders.filter(|token| self.is_counted_of_others(*token, key, kin)));
        }
        holds
    }

    /// The holds that keep an item from being granted to a request that waits, or would come next:
    /// none where it only has to let others go first. Those of its key come first, the oldest
    /// before the others; at most `max`. Slots that its own frames have count where `own` are asked
    /// for: a waiter does not wait for them.
    #[must_use]
    pub fn blocking_holds(
        &self,
        asked: &Request,
        item: usize,
        own: bool,
        max: usize,
    ) -> Vec<Token> {
        let Some(Item { key, ask }) = asked.items.get(item) else { return Vec::new() };
        let frame = self.frame_of(asked.host, &asked.owner);
        let frame = frame.unwrap_or(FrameId(self.revision.0 + 1));
        let kin = self.kin(frame, self.outer(asked));
        let full = match *ask {
            Ask::Counted { count, view } => self.tree.lock(key).is_some_and(|lock| {
                !lock.fits(lock.class_of(count, view))
                    && self.base(lock, key, count, &kin).is_none()
            }),
            Ask::Read | Ask::Write => false,
        };
        let exempt = if own { &[][..] } else { &kin };
        let counted =
            self.holders(key).filter(|token| self.is_counted_of_others(*token, key, exempt));
        let counted = counted.take(if full { max } else { 0 });
        let holds = counted.chain(self.conflicting_holds(key, ask.mode(), &kin));
        let mut seen = BTreeSet::new();
        holds.filter(|token| seen.insert(*token)).take(max).collect()
    }

    /// The holds of others than `kin` that conflict with an item of a key.
    pub(in crate::core) fn conflicting_holds<'a>(
        &'a self,
        key: &'a Key,
        mode: Mode,
        kin: &'a [FrameId],
    ) -> impl Iterator<Item = Token> + 'a {
        let in_the_way = move |at: &Key, token: Token| {
            self.hold(token).is_some_and(|hold| {
                let mut items = hold.items.iter();
                !kin.contains(&hold.frame)
                    && items.any(|item| item.key == *at && conflict(item.mode, mode))
            })
        };
        let keys = self.tree.conflicting(key, mode);
        keys.flat_map(move |(at, holds)| {
            holds.iter().copied().filter(move |token| in_the_way(at, *token))
        })
    }

    /// Whether a hold of others has slots of a key that `kin` have not: what shares slots of theirs
    /// gives none back.
    fn is_counted_of_others(&self, token: Token, key: &Key, kin: &[FrameId]) -> bool {
        let Some(hold) = self.hold(token).filter(|hold| !kin.contains(&hold.frame)) else {
            return false;
        };
        let mut items = hold.items.iter().filter(|item| item.key == *key);
        let Some(item) = items.find(|item| item.mode == Mode::Counted) else { return false };
        // Sets of slots that are shared begin alike.
        let first = |item: &HeldItem| item.slots.0.first().map(|range| range.0);
        let has_all =
            |own: &HeldItem| first(own) == first(item) && own.slots.count() >= item.slots.count();
        !self.counted_by(key, kin).any(has_all)
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
        if self.recovery.is_some() {
            return why(0, Reason::Recovering);
        }
        let kin = self.kin(waiter.frame, None);
        let items = 0..waiter.request.items.len();
        let reasons = items.filter_map(|item| Some((item, self.reason(waiter, item, &kin)?)));
        // What is parked keeps it whatever else is free; what is held before order.
        let (index, reason) = reasons.min_by_key(|(index, reason)| (severity(*reason), *index))?;
        why(index, reason)
    }

    fn reason(&self, waiter: &WaiterState, item: usize, kin: &[FrameId]) -> Option<Reason> {
        let Item { key, ask } = waiter.request.items.get(item)?;
        if let Ask::Counted { count, view } = *ask {
            let lock = self.tree.lock(key)?;
            let class = lock.class_of(count, view);
            let capacity = lock.capacity(class);
            if lock.parks(class) {
                let larger = Reason::LargerThanLock { count, capacity };
                return Some(if capacity == 0 { Reason::Drained } else { larger });
            }
            if !lock.fits(class) && self.base(lock, key, count, kin).is_none() {
                return Some(Reason::Full { held: lock.held, capacity });
            }
        }
        let conflicts: BTreeSet<Token> = self.conflicting_holds(key, ask.mode(), kin).collect();
        if let Some(hold) = conflicts.first() {
            return Some(Reason::Conflict { hold: *hold, holds: conflicts.len() as u64 });
        }
        let ahead = self.barring_item(&waiter.request, item, kin, self.rank(waiter));
        let first = *ahead.first()?;
        let barrier = self.waiters.get(&first).is_some_and(|first| first.barrier);
        Some(Reason::Behind { waiter: first, barrier })
    }
}

fn severity(reason: Reason) -> u8 {
    match reason {
        Reason::Suspended | Reason::Detached | Reason::Recovering => 0,
        Reason::Drained | Reason::LargerThanLock { .. } => 1,
        Reason::Full { .. } | Reason::Conflict { .. } => 2,
        Reason::Behind { .. } => 3,
    }
}
