//! Queries of the table, for status and messages.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::index::grant_order::Class;
use crate::index::key_tree::{Node, conflict};
use crate::state::table::Contender;
use crate::{
    By, FrameId, HeldItem, Item, Key, Kind, Mode, Request, RequestId, Settings, Table, Token, View,
    WaiterStatus,
};

/// One hold or waiter that blocks a waiting request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The item that it blocks.
    pub item: usize,
    /// The item's key.
    pub key: Key,
    /// The hold or waiter.
    pub by: By,
}

/// Why a waiting request is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The item that is not free.
    pub item: usize,
    /// The item's key.
    pub key: Key,
    /// The reason.
    pub reason: Reason,
}

/// The size of a lock, other than the size that a request itself states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeFound {
    /// The stored size, which applies to every request.
    Stored(View),
    /// The size that the latest hold stated. Requests that state no size follow it.
    Followed(View),
}

/// The reason for a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too few slots are free.
    Full {
        /// The number of held slots that are in service.
        held: u64,
        /// The number of slots of its view that are in service.
        capacity: u64,
    },
    /// A conflicting item is held: of this key, or of a key above or below it.
    Conflict {
        /// One of the holds.
        hold: Token,
        /// The number of such holds.
        holds: u64,
    },
    /// Another waiter precedes it: an earlier one, one of higher priority, or a barrier.
    Behind {
        /// The waiter that precedes it.
        waiter: RequestId,
        /// Whether that waiter is a barrier.
        barrier: bool,
    },
    /// The key is paused.
    Paused,
    /// The request wants more slots at once than the applicable view has.
    LargerThanLock {
        /// The slots that it wants.
        count: u64,
        /// The slots that the view has.
        capacity: u64,
    },
    /// Its process is stopped.
    Suspended,
    /// Its daemon restarted, and its client has not connected again.
    Detached,
    /// The table grants nothing until its recovery is over.
    Recovering,
}

/// Whether the slots that a request's own lineage holds count as blockers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnSlots {
    /// They count, because they are in use.
    Count,
    /// They do not count, because a waiter does not wait for them.
    LeftOut,
}

impl Table {
    /// The keys that `prefix` covers (all keys if `None`) and that are in use, have a stored view
    /// or are paused, in order. The cost is proportional to their number.
    pub fn keys<'a>(&'a self, prefix: Option<&Key>) -> impl Iterator<Item = &'a Key> + use<'a> {
        self.tree.keys(prefix)
    }

    /// Replaces keys with the equal keys of the table, so that thousands of waiters for one key
    /// store its text once. Does nothing while there are no waiters.
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

    /// The stored view of a key, else the view that a request without one would get now; `None` for
    /// a key without a stored view or slots in use.
    #[must_use]
    pub fn effective_view(&self, key: &Key) -> Option<View> {
        self.settings(key).view.or_else(|| self.kind(key).map(|_| self.followed(key)))
    }

    /// The kind in which a key is in use, else the kind of its stored view.
    #[must_use]
    pub fn kind(&self, key: &Key) -> Option<Kind> {
        self.tree.lock(key).effective_kind()
    }

    /// The number of slots of that view that are in service.
    #[must_use]
    pub fn effective_capacity(&self, key: &Key) -> Option<u64> {
        self.effective_view(key).map(|view| self.settings(key).without.capacity(view))
    }

    /// Whether more slots of a key are held than its stored size has in service.
    #[must_use]
    pub fn is_overfull(&self, key: &Key) -> bool {
        let lock = self.tree.lock(key);
        lock.settings.view.is_some() && !lock.fits(lock.class_of(0, None))
    }

    /// The holds of a key, oldest first.
    pub fn holders(&self, key: &Key) -> impl Iterator<Item = Token> {
        self.tree.node(key).into_iter().flat_map(|node| node.holds.iter().copied())
    }

    /// The number of held slots of a key.
    #[must_use]
    pub fn held_of(&self, key: &Key) -> u64 {
        self.tree.lock(key).held
    }

    /// The numbers of held slots and of all slots that are in service under the view of an item,
    /// for a request that waits or arrives next. `None` for reads and writes.
    #[must_use]
    pub fn use_for(&self, asked: &Request, item: usize) -> Option<(u64, u64)> {
        let asked = self.asked_for(asked);
        let Item { key, ask } = asked.items.get(item)?;
        let (count, own) = ask.counted()?;
        let lock = self.tree.lock(key);
        let Class { capacity, unit, .. } = lock.class_of(count, own);
        Some((lock.held_in_service(unit), capacity))
    }

    /// The stored view of a key, or the view that the latest hold other than `own` stated.
    #[must_use]
    pub fn size_found(&self, key: &Key, own: Option<Token>) -> Option<SizeFound> {
        if let Some(stored) = self.settings(key).view {
            return Some(SizeFound::Stored(stored));
        }
        self.stated_by_holds(key)
            .find(|(token, _)| Some(*token) != own)
            .map(|(_, view)| SizeFound::Followed(view))
    }

    /// The request with its views, as the table stores it or would store it.
    fn asked_for<'r>(&self, asked: &'r Request) -> Cow<'r, Request> {
        match self.tagged(asked.tag) {
            Some(_) => Cow::Borrowed(asked),
            None => self.sized(asked),
        }
    }

    /// The stored settings of a key.
    #[must_use]
    pub fn settings(&self, key: &Key) -> &Settings {
        &self.tree.lock(key).settings
    }

    /// The keys with stored settings, in order.
    pub fn stored_settings(&self) -> impl Iterator<Item = (&Key, &Settings)> {
        let settings = self.tree.locks().map(|(key, lock)| (key, &lock.settings));
        settings.filter(|(_, settings)| !settings.is_default())
    }

    /// The number of requests that wait for a key.
    #[must_use]
    pub fn waiting_for(&self, key: &Key) -> usize {
        self.tree.node(key).map_or(0, Node::waiting)
    }

    /// Whether an active request waits for a key, or for a key above or below it. Linear in the
    /// number of waiters.
    #[must_use]
    pub fn is_awaited(&self, key: &Key) -> bool {
        let meets = |item: &Item| item.key.covers(key) || key.covers(&item.key);
        let mut waiters = self.waiters.values();
        waiters.any(|waiter| waiter.request.items.iter().any(meets) && !self.is_inactive(waiter))
    }

    /// A waiter's position in the queue of an item's key: 1 is granted next. Linear in the length
    /// of the queue.
    #[must_use]
    pub fn position(&self, request: RequestId, item: usize) -> Option<usize> {
        let key = &self.waiters.get(&request)?.request.items.get(item)?.key;
        self.served(key).iter().position(|id| *id == request).map(|index| index + 1)
    }

    /// The blockers of a waiting request: for each item that is not free, all conflicting holds, or
    /// else all waiters that precede it. Linear in their number.
    #[must_use]
    pub fn blockers(&self, request: RequestId) -> Vec<Blocker> {
        let Some(waiter) = self.waiters.get(&request) else { return Vec::new() };
        let contender = self.contender(waiter);
        let items = waiter.request.items.iter().enumerate();
        items.flat_map(|(at, item)| self.blockers_of(&contender, at, item)).collect()
    }

    fn blockers_of(&self, contender: &Contender<'_>, at: usize, item: &Item) -> Vec<Blocker> {
        let blocker = |by| Blocker { item: at, key: item.key.clone(), by };
        let holds = self.holds_in_the_way(item, &contender.lineage);
        if !holds.is_empty() {
            let by = |token: Token| Some(By::Hold(token, self.hold(token)?.frame));
            return holds.into_iter().filter_map(by).map(blocker).collect();
        }
        let by = |id: RequestId| Some(By::Waiter(id, self.waiter(id)?.frame));
        self.predecessors_of_item(contender, item).filter_map(by).map(blocker).collect()
    }

    /// The holds that block one item of a waiting request.
    pub(crate) fn holds_in_the_way(&self, item: &Item, lineage: &[FrameId]) -> BTreeSet<Token> {
        let Item { key, ask } = item;
        let mut holds: BTreeSet<Token> = self.conflicting_holds(key, ask.mode(), lineage).collect();
        if self.contested(item, lineage).is_some_and(|(lock, class)| !lock.fits(class)) {
            let holders = self.holders(key);
            holds.extend(holders.filter(|token| self.is_counted_of_others(*token, key, lineage)));
        }
        holds
    }

    /// The holds that block an item of a request that waits or arrives next; empty if only other
    /// waiters precede it. At most `max`: those of the item's own key first, oldest first.
    #[must_use]
    pub fn blocking_holds(
        &self,
        asked: &Request,
        item: usize,
        own: OwnSlots,
        max: usize,
    ) -> Vec<Token> {
        let next = RequestId(self.globals.revision.0 + 1);
        let Contender { asked, lineage, .. } = self.newcomer(self.asked_for(asked), next);
        let Some(item) = asked.items.get(item) else { return Vec::new() };
        let key = &item.key;
        let is_full = self.contested(item, &lineage).is_some_and(|(lock, class)| !lock.fits(class));
        let exempt = if own == OwnSlots::Count { &[][..] } else { &lineage };
        let counted =
            self.holders(key).filter(|token| self.is_counted_of_others(*token, key, exempt));
        let counted = counted.take(if is_full { max } else { 0 });
        let holds = counted.chain(self.conflicting_holds(key, item.ask.mode(), &lineage));
        let mut seen = BTreeSet::new();
        holds.filter(|token| seen.insert(*token)).take(max).collect()
    }

    /// The holds outside the lineage that conflict with an item of a key.
    pub fn conflicting_holds<'a>(
        &'a self,
        key: &'a Key,
        mode: Mode,
        lineage: &'a [FrameId],
    ) -> impl Iterator<Item = Token> + 'a {
        let in_the_way = move |at: &Key, token: Token| {
            self.hold(token).is_some_and(|hold| {
                let mut items = hold.items.iter();
                !lineage.contains(&hold.frame)
                    && items.any(|item| item.key == *at && conflict(item.mode, mode))
            })
        };
        let keys = self.tree.conflicting(key, mode);
        keys.flat_map(move |(at, holds)| {
            holds.iter().copied().filter(move |token| in_the_way(at, *token))
        })
    }

    /// Whether a hold outside the lineage has slots of a key that the lineage does not have. A hold
    /// that only shares slots of the lineage frees none when it ends.
    fn is_counted_of_others(&self, token: Token, key: &Key, lineage: &[FrameId]) -> bool {
        let Some(hold) = self.hold(token).filter(|hold| !lineage.contains(&hold.frame)) else {
            return false;
        };
        let mut items = hold.items.iter().filter(|item| item.key == *key);
        let Some(item) = items.find(|item| item.mode == Mode::Counted) else { return false };
        // Two holds that share slots begin with the same slot.
        let first = |item: &HeldItem| item.slots.0.first().map(|range| range.0);
        let has_all =
            |own: &HeldItem| first(own) == first(item) && own.slots.count() >= item.slots.count();
        !self.counted_by(key, lineage).any(has_all)
    }

    /// Why a waiting request is not granted.
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
        if self.globals.recovery.is_some() {
            return why(0, Reason::Recovering);
        }
        let contender = self.contender(waiter);
        let items = waiter.request.items.iter().enumerate();
        let reasons = items.filter_map(|(at, item)| Some((at, self.reason(&contender, item)?)));
        // A parked item blocks the request regardless of what else is free. A hold is reported
        // rather than an earlier waiter.
        let (index, reason) = reasons.min_by_key(|(index, reason)| (severity(*reason), *index))?;
        why(index, reason)
    }

    fn reason(&self, contender: &Contender<'_>, item: &Item) -> Option<Reason> {
        let Contender { lineage, .. } = contender;
        if let Some((lock, class)) = self.contested(item, lineage) {
            let Class { capacity, count, unit } = class;
            if lock.settings.paused {
                return Some(Reason::Paused);
            }
            if count > capacity {
                return Some(Reason::LargerThanLock { count, capacity });
            }
            if !lock.fits(class) {
                return Some(Reason::Full { held: lock.held_in_service(unit), capacity });
            }
        }
        let conflicts = self.conflicting_holds(&item.key, item.ask.mode(), lineage);
        let conflicts: BTreeSet<Token> = conflicts.collect();
        if let Some(hold) = conflicts.first() {
            return Some(Reason::Conflict { hold: *hold, holds: conflicts.len() as u64 });
        }
        let waiter = self.predecessors_of_item(contender, item).next()?;
        let barrier = self.waiters.get(&waiter).is_some_and(|waiter| waiter.barrier);
        Some(Reason::Behind { waiter, barrier })
    }
}

fn severity(reason: Reason) -> u8 {
    match reason {
        Reason::Suspended | Reason::Detached | Reason::Recovering => 0,
        Reason::Paused => 1,
        Reason::LargerThanLock { .. } => 2,
        Reason::Full { .. } | Reason::Conflict { .. } => 3,
        Reason::Behind { .. } => 4,
    }
}
