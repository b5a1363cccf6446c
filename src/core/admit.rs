//! Whether a request can be granted, and what keeps it.

use super::free::FreeSlots;
use super::lock::Lock;
use super::queue::{Class, Rank};
use super::{Ask, FrameId, GrantedItem, HeldItem, Key, Kind, Request, RequestId, Table, View};

/// What is to become of a request now. The number is the item that keeps it.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// It can have everything.
    Grant { items: Vec<GrantedItem>, past_own: bool },
    /// Not enough slots are free.
    Full(usize),
    /// The slots are free, but somebody goes first.
    Barred(usize),
}

/// How one item stands.
enum Standing {
    Free(GrantedItem),
    Full,
    Barred,
}

impl Table {
    /// The frames whose holds do not keep a frame's requests: itself and those that enclose it.
    /// `parent` counts for a frame that is not open yet.
    pub(super) fn kin(&self, frame: FrameId, parent: Option<FrameId>) -> Vec<FrameId> {
        if self.frames.contains_key(&frame) {
            return self.enclosing(frame).map(|frame| frame.state.id).collect();
        }
        let outer = parent.into_iter().flat_map(|parent| self.enclosing(parent));
        std::iter::once(frame).chain(outer.map(|frame| frame.state.id)).collect()
    }

    /// Whether a request of rank `rank` can be granted; `barrier` is its id if it is one.
    pub(super) fn verdict(
        &self,
        asked: &Request,
        kin: &[FrameId],
        rank: Rank,
        barrier: Option<RequestId>,
    ) -> Verdict {
        self.judge(asked, kin, |lock, capacity| lock.bars(capacity, rank, barrier))
    }

    /// Goes through the items of a request; `barred` says whether somebody goes first.
    pub(super) fn judge(
        &self,
        asked: &Request,
        kin: &[FrameId],
        barred: impl Fn(&Lock, u64) -> bool,
    ) -> Verdict {
        let mut items = Vec::with_capacity(asked.items.len());
        let mut first_barred = None;
        for (index, item) in asked.items.iter().enumerate() {
            match self.standing(&item.key, &item.ask, kin, &barred) {
                Standing::Full => return Verdict::Full(index),
                Standing::Barred => first_barred = first_barred.or(Some(index)),
                Standing::Free(given) => items.push(given),
            }
        }
        match first_barred {
            Some(index) => Verdict::Barred(index),
            None => Verdict::Grant { items, past_own: false },
        }
    }

    fn standing(
        &self,
        key: &Key,
        ask: &Ask,
        kin: &[FrameId],
        barred: impl Fn(&Lock, u64) -> bool,
    ) -> Standing {
        let (Ask::Counted { count, .. }, Some(view)) = (ask, self.view_of(key, ask)) else {
            return Standing::Full;
        };
        let capacity = view.capacity();
        let Some(lock) = self.locks.get(key) else {
            let slots = FreeSlots::default().lowest(*count);
            let given = GrantedItem { acquired: *count, slots, shared: false, view: Some(view) };
            return if *count <= capacity { Standing::Free(given) } else { Standing::Full };
        };
        if let Some(base) = self.base(lock, key, *count, kin) {
            let slots = base.slots.lowest(*count);
            return Standing::Free(GrantedItem {
                acquired: lock.held,
                slots,
                shared: true,
                view: Some(view),
            });
        }
        let acquired = match lock.held.checked_add(*count) {
            Some(total) if total <= capacity => total,
            _ => return Standing::Full,
        };
        if barred(lock, capacity) {
            return Standing::Barred;
        }
        let slots = lock.free.lowest(*count);
        Standing::Free(GrantedItem { acquired, slots, shared: false, view: Some(view) })
    }

    /// The hold of a slots lock by one of `kin` that a request for `count` slots can share.
    fn base(&self, lock: &Lock, key: &Key, count: u64, kin: &[FrameId]) -> Option<&HeldItem> {
        if lock.kind != Some(Kind::Slots) {
            return None;
        }
        let shares = kin.iter().filter_map(|frame| self.frames.get(frame)?.shares.get(key));
        let holds = shares.flat_map(|share| &share.tokens).filter_map(|token| self.hold(*token));
        let mut items = holds.flat_map(|hold| hold.items.iter().filter(|item| item.key == *key));
        items.find(|item| item.slots.count() >= count)
    }

    /// The item that would not fit even if every frame but `kin` left.
    pub(super) fn own_deadlock(&self, asked: &Request, kin: &[FrameId]) -> Option<usize> {
        asked.items.iter().position(|item| {
            let Ask::Counted { count, .. } = item.ask else { return false };
            let Some(lock) = self.locks.get(&item.key) else { return false };
            if self.base(lock, &item.key, count, kin).is_some() {
                return false;
            }
            let shares =
                kin.iter().filter_map(|frame| self.frames.get(frame)?.shares.get(&item.key));
            let own: u64 = shares.map(|share| share.slots).sum();
            let capacity = self.view_of(&item.key, &item.ask).map_or(0, View::capacity);
            own > 0 && own.saturating_add(count) > capacity
        })
    }
}

impl Lock {
    /// Whether a waiter goes before a request of this class and rank, own blockers not looked at.
    ///
    /// A waiter that does not fit its own view lets a larger view pass that fits; one that fits,
    /// or whose view is as large, does not. Barriers let nobody pass.
    pub(super) fn bars(&self, capacity: u64, rank: Rank, barrier: Option<RequestId>) -> bool {
        match (self.queue.barriers().next(), barrier) {
            (Some((first, _)), Some(own)) => return first < own,
            (Some(_), None) => return true,
            (None, Some(_)) => return false,
            (None, None) => {}
        }
        self.queue.firsts().any(|(class, first)| first < rank && self.holds_back(class, capacity))
    }

    /// Whether a waiter of `class` that is ahead of a request with a view of `capacity` bars it.
    pub(super) fn holds_back(&self, class: Class, capacity: u64) -> bool {
        self.fits(class) || self.capacity(class) >= capacity
    }
}
