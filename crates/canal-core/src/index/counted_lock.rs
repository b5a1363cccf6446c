//! The counted lock of one key.

use std::collections::{BTreeMap, BTreeSet};

use super::grant_order::{Class, Rank, Waits, change_waits};
use super::slots_and_buckets::SlotPool;
use crate::{Kind, Settings, SlotRange, Slots, Token, View};

/// The counted lock of one key. It is in use while items of it are held or waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    pub(crate) settings: Settings,
    /// The kind, while the lock is in use.
    pub(crate) kind: Option<Kind>,
    /// The number of items that are held or waited for.
    pub(crate) uses: usize,
    /// The number of slots that are held.
    pub(crate) held: u64,
    free: SlotPool,
    /// The holds that share the slots of another hold.
    pub(crate) sharers: BTreeSet<Token>,
    /// The active waiters for slots.
    pub(crate) queue: BTreeMap<Class, Waits>,
}

impl Lock {
    /// The view that applies to an item that states `own`.
    pub(crate) fn view_of(&self, own: Option<View>) -> View {
        self.settings.view.or(own).unwrap_or(View::ONE)
    }

    pub(crate) fn class_of(&self, count: u64, own: Option<View>) -> Class {
        let (view, without) = (self.view_of(own), &self.settings.without);
        Class { capacity: without.capacity(view), count, unit: without.unit(view) }
    }

    /// Whether enough slots are free for a class.
    pub(crate) fn fits(&self, class: Class) -> bool {
        let held = self.held_in_service(class.unit);
        held.checked_add(class.count).is_some_and(|total| total <= class.capacity)
    }

    /// How many held slots are in service.
    pub(crate) fn held_in_service(&self, unit: u64) -> u64 {
        self.held - self.held_out(unit)
    }

    /// How many held slots are out of service.
    pub(crate) fn held_out(&self, unit: u64) -> u64 {
        self.settings.without.held(unit, &self.free)
    }

    /// How many slots of some sets, which may overlap, are in service.
    pub(crate) fn in_service<'a>(&self, unit: u64, sets: impl Iterator<Item = &'a Slots>) -> u64 {
        let pool = SlotPool::of(sets);
        pool.count() - self.settings.without.held(unit, &pool)
    }

    /// The slots for a request that fits: one in the bucket with the fewest held slots if the
    /// request asks for that, else the lowest. The lowest is the default because a lock that
    /// shrinks loses its highest slots, which are then free most often. Several slots at once are
    /// always the lowest.
    pub(crate) fn choose(&self, count: u64, view: View, spread: bool) -> Slots {
        if let View::Buckets { per, buckets } = view
            && spread
            && count == 1
            && let Some(bucket) = self.free.emptiest(per, buckets, &self.settings.without)
            && let Some(SlotRange(slot, _)) = self.free.free_from(bucket * per).next()
        {
            return Slots(vec![SlotRange(slot, slot)]);
        }
        self.settings.without.lowest(self.settings.without.unit(view), &self.free, count)
    }

    /// Takes slots. Takes nothing and returns false if one of them is not free.
    pub(crate) fn take(&mut self, slots: &Slots) -> bool {
        let is_free = self.free.take(slots);
        self.held += if is_free { slots.count() } else { 0 };
        is_free
    }

    /// Releases slots that were taken.
    pub(crate) fn give_back(&mut self, slots: &Slots) {
        self.held -= slots.count();
        self.free.give_back(slots);
    }

    /// Adds an item of a waiter that wants `count` slots, or removes it. An inactive waiter uses
    /// the lock, but is not in its queue.
    pub(crate) fn change_waiter(
        &mut self,
        (count, own): (u64, Option<View>),
        rank: Rank,
        rests: bool,
        is_added: bool,
    ) {
        match is_added {
            true => self.add_use(self.view_of(own).kind()),
            false => self.remove_use(),
        }
        if !rests {
            let class = self.class_of(count, own);
            let waits = self.queue.entry(class).or_default();
            change_waits(waits, rank, is_added);
            if waits.is_empty() {
                self.queue.remove(&class);
            }
        }
    }

    /// Counts one more use. The first use fixes the kind.
    pub(crate) fn add_use(&mut self, kind: Kind) {
        if self.uses == 0 {
            self.kind = Some(kind);
        }
        self.uses += 1;
    }

    /// Removes one use. After the last use, the lock can take another kind.
    pub(crate) fn remove_use(&mut self) {
        self.uses = self.uses.saturating_sub(1);
        if self.uses == 0 {
            self.kind = None;
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.uses == 0 && self.settings.is_default()
    }

    /// The kind in use, else the kind of the stored view.
    pub(crate) fn effective_kind(&self) -> Option<Kind> {
        self.kind.or_else(|| self.settings.view.map(View::kind))
    }
}
