//! Decides whether a request can be granted, and names the item that prevents it.

use crate::index::grant_order::Rank;
use crate::index::key_tree::Node;
use crate::index::lock::Lock;
use crate::index::slot_pool::SlotPool;
use crate::state::table::Share;
use crate::{Ask, FrameId, GrantedItem, Key, Mode, Request, Slots, Table};

/// Whether a request can be granted now. The number is the index of the item that prevents it.
#[derive(Clone, Debug)]
pub(crate) enum Admission {
    /// Every item can be granted.
    Grant { items: Vec<GrantedItem>, bypassed_blockers: bool },
    /// Too few slots are free, or another session holds a conflicting item.
    Conflict(usize),
    /// The item is free, but another waiter precedes the request.
    Behind(usize),
}

/// Whether one item can be granted.
enum ItemAdmission {
    Free(GrantedItem),
    Conflict,
    Behind,
}

/// The waiters that precede a request.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Waiters with a smaller rank that want a conflicting item.
    Before(Rank),
    /// No waiter.
    Ignored,
}

impl Table {
    /// Whether a request of this rank can be granted.
    pub(crate) fn admission(&self, asked: &Request, lineage: &[FrameId], rank: Rank) -> Admission {
        self.judge(asked, lineage, Order::Before(rank))
    }

    /// Whether a request could be granted if there were no other waiter.
    pub(crate) fn admission_alone(&self, asked: &Request, lineage: &[FrameId]) -> Admission {
        self.judge(asked, lineage, Order::Ignored)
    }

    fn judge(&self, asked: &Request, lineage: &[FrameId], order: Order) -> Admission {
        let mut items = Vec::with_capacity(asked.items.len());
        let mut first_behind = None;
        for (index, item) in asked.items.iter().enumerate() {
            match self.item_admission(&item.key, &item.ask, lineage, order) {
                ItemAdmission::Conflict => return Admission::Conflict(index),
                ItemAdmission::Behind => first_behind = first_behind.or(Some(index)),
                ItemAdmission::Free(given) => items.push(given),
            }
        }
        match first_behind {
            Some(index) => Admission::Behind(index),
            None => Admission::Grant { items, bypassed_blockers: false },
        }
    }

    fn item_admission(
        &self,
        key: &Key,
        ask: &Ask,
        lineage: &[FrameId],
        order: Order,
    ) -> ItemAdmission {
        let (mode, node) = (ask.mode(), self.tree.node(key));
        let conflicts = self.tree.conflicts_of(key, node, mode);
        if self.foreign(conflicts, key, mode, lineage) > 0 {
            return ItemAdmission::Conflict;
        }
        let behind = match order {
            // Most tables have no waiters.
            Order::Before(rank) if !self.waiters.is_empty() => {
                self.tree.is_preceded(key, mode, rank) && !self.lineage_covers(key, mode, lineage)
            }
            Order::Before(_) | Order::Ignored => false,
        };
        let item_admission = match ask {
            Ask::Counted { .. } => {
                let lock = node.and_then(Node::lock_in_use);
                self.counted_admission((key, lock), ask, lineage, order)
            }
            Ask::Read | Ask::Write => {
                let acquired = node.map_or(0, |node| node.held_here(mode)) as u64 + 1;
                let slots = Slots::default();
                ItemAdmission::Free(GrantedItem { acquired, slots, shared: false, view: None })
            }
        };
        match item_admission {
            ItemAdmission::Free(given) if behind && !given.shared => ItemAdmission::Behind,
            item_admission => item_admission,
        }
    }

    fn counted_admission(
        &self,
        (key, lock): (&Key, Option<&Lock>),
        ask: &Ask,
        lineage: &[FrameId],
        order: Order,
    ) -> ItemAdmission {
        let Some((count, own)) = ask.counted() else { return ItemAdmission::Conflict };
        let view = Lock::view_of(lock, own);
        let given = |acquired, slots, shared, view| {
            ItemAdmission::Free(GrantedItem { acquired, slots, shared, view })
        };
        let Some(lock) = lock else {
            let fits = count <= view.capacity();
            let slots = || SlotPool::default().lowest(count);
            let free = || given(count, slots(), false, Some(view));
            return if fits { free() } else { ItemAdmission::Conflict };
        };
        if let Some(base) = self.shareable_hold(lock, key, count, lineage) {
            return given(lock.held, base.slots.lowest(count), true, base.view);
        }
        let class = lock.class_of(count, own);
        if lock.paused || !lock.fits(class) {
            return ItemAdmission::Conflict;
        }
        match order {
            Order::Before(rank) if lock.is_preceded(class.capacity, rank) => ItemAdmission::Behind,
            _ => {
                let slots = lock.choose(count, view, ask.is_spread());
                given(lock.held.saturating_add(count), slots, false, Some(view))
            }
        }
    }

    /// The number of items held outside the lineage that conflict with an item of `key`.
    pub(crate) fn foreign_conflicts(&self, key: &Key, mode: Mode, lineage: &[FrameId]) -> usize {
        self.foreign(self.tree.conflicts(key, mode), key, mode, lineage)
    }

    /// Subtracts the items of the lineage from `all`, the number of held items that conflict with
    /// an item of `key`.
    fn foreign(&self, all: usize, key: &Key, mode: Mode, lineage: &[FrameId]) -> usize {
        if all == 0 {
            return 0;
        }
        let counts = |share: &Share| match mode {
            Mode::Write => share.reads + share.writes,
            Mode::Counted | Mode::Read => share.writes,
        };
        let own = lineage.iter().filter_map(|frame| self.frames.get(frame)).map(|frame| {
            let above: usize = key
                .path()
                .filter_map(|covering| frame.shares.get(covering))
                .map(|share| counts(share))
                .sum();
            let (from, to) = key.below();
            let range = (from.as_ref().map(String::as_str), to.as_ref().map(String::as_str));
            let below = frame.shares.range::<str, _>(range).map(|(_, share)| counts(share));
            above + below.sum::<usize>()
        });
        all - own.sum::<usize>()
    }

    /// The item that would not fit even if every frame outside the lineage released its slots.
    /// Slots that the lineage shares with other frames then count as the lineage's own.
    pub(crate) fn own_deadlock(&self, asked: &Request, lineage: &[FrameId]) -> Option<usize> {
        asked.items.iter().position(|item| {
            let Some((count, own)) = item.ask.counted() else { return false };
            let Some(lock) = self.tree.lock(&item.key) else { return false };
            if self.shareable_hold(lock, &item.key, count, lineage).is_some() {
                return false;
            }
            let slots = self.counted_by(&item.key, lineage).map(|item| &item.slots);
            let class = lock.class_of(count, own);
            let held = lock.without.in_service(class.unit, &Slots::together(slots));
            held > 0 && held.saturating_add(count) > class.capacity
        })
    }
}
