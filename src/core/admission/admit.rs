//! Whether a request can be granted, and what keeps it.

use crate::core::index::lock::Lock;
use crate::core::index::node::Node;
use crate::core::index::queue::Rank;
use crate::core::index::slot_pool::FreeSlots;
use crate::core::state::table::Share;
use crate::core::{
    Ask, FrameId, GrantedItem, HeldItem, Key, Kind, Mode, Request, Slots, Table, View,
};

/// What is to become of a request now. The number is the item that keeps it.
#[derive(Clone, Debug)]
pub(in crate::core) enum Verdict {
    /// It can have everything.
    Grant { items: Vec<GrantedItem>, past_own: bool },
    /// Not enough slots are free, or somebody holds in a way that conflicts.
    Full(usize),
    /// Nobody holds what it wants, but somebody goes first.
    Barred(usize),
}

/// How one item stands.
enum Standing {
    Free(GrantedItem),
    Full,
    Barred,
}

/// Which waiters go before a request.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Those of smaller rank that compete with it.
    Before(Rank),
    /// None.
    Ignored,
}

impl Table {
    /// The frames whose holds do not keep a frame's requests: itself and those that enclose it.
    /// `parent` counts for a frame that is not open yet.
    pub(in crate::core) fn kin(&self, frame: FrameId, parent: Option<FrameId>) -> Vec<FrameId> {
        if self.frames.contains_key(&frame) {
            return self.enclosing(frame).map(|frame| frame.state.id).collect();
        }
        // Mostly nothing encloses it.
        let mut kin = vec![frame];
        if let Some(parent) = parent {
            kin.extend(self.enclosing(parent).map(|frame| frame.state.id));
        }
        kin
    }

    /// Whether a request of rank `rank` can be granted.
    pub(in crate::core) fn verdict(&self, asked: &Request, kin: &[FrameId], rank: Rank) -> Verdict {
        self.judge(asked, kin, Order::Before(rank))
    }

    /// Whether a request could be granted if nobody else waited.
    pub(in crate::core) fn verdict_alone(&self, asked: &Request, kin: &[FrameId]) -> Verdict {
        self.judge(asked, kin, Order::Ignored)
    }

    fn judge(&self, asked: &Request, kin: &[FrameId], order: Order) -> Verdict {
        let mut items = Vec::with_capacity(asked.items.len());
        let mut first_barred = None;
        for (index, item) in asked.items.iter().enumerate() {
            match self.standing(&item.key, &item.ask, kin, order) {
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

    fn standing(&self, key: &Key, ask: &Ask, kin: &[FrameId], order: Order) -> Standing {
        let (mode, node) = (ask.mode(), self.tree.node(key));
        let conflicts = self.tree.conflicts_of(key, node, mode);
        if self.foreign(conflicts, key, mode, kin) > 0 {
            return Standing::Full;
        }
        let barred = match order {
            // Mostly nobody waits for anything.
            Order::Before(rank) if !self.waiters.is_empty() => {
                self.tree.bars(key, mode, rank) && !self.covers(key, mode, kin)
            }
            Order::Before(_) | Order::Ignored => false,
        };
        let standing = match ask {
            Ask::Counted { count, view } => {
                let lock = node.and_then(Node::lock_in_use);
                self.standing_counted((key, lock), *count, *view, kin, order)
            }
            Ask::Read | Ask::Write => {
                let acquired = node.map_or(0, |node| node.held_here(mode)) as u64 + 1;
                let slots = Slots::default();
                Standing::Free(GrantedItem { acquired, slots, shared: false, view: None })
            }
        };
        match standing {
            Standing::Free(given) if barred && !given.shared => Standing::Barred,
            standing => standing,
        }
    }

    fn standing_counted(
        &self,
        (key, lock): (&Key, Option<&Lock>),
        count: u64,
        stated: Option<View>,
        kin: &[FrameId],
        order: Order,
    ) -> Standing {
        let Some(view) = Lock::view_of(lock, stated) else { return Standing::Full };
        let capacity = view.capacity();
        let given = |acquired, slots, shared| {
            Standing::Free(GrantedItem { acquired, slots, shared, view: Some(view) })
        };
        let Some(lock) = lock else {
            let fits = count <= capacity;
            let slots = || FreeSlots::default().lowest(count);
            return if fits { given(count, slots(), false) } else { Standing::Full };
        };
        if let Some(base) = self.base(lock, key, count, kin) {
            return given(lock.held, base.slots.lowest(count), true);
        }
        let acquired = match lock.held.checked_add(count) {
            Some(total) if total <= capacity => total,
            _ => return Standing::Full,
        };
        match order {
            Order::Before(rank) if lock.bars(capacity, rank) => Standing::Barred,
            _ => given(acquired, lock.free.lowest(count), false),
        }
    }

    /// How many items are held by others than `kin` that conflict with an item of `key`.
    pub(in crate::core) fn foreign_conflicts(
        &self,
        key: &Key,
        mode: Mode,
        kin: &[FrameId],
    ) -> usize {
        self.foreign(self.tree.conflicts(key, mode), key, mode, kin)
    }

    /// How many of all items that conflict with an item of `key` are held by others than `kin`.
    fn foreign(&self, all: usize, key: &Key, mode: Mode, kin: &[FrameId]) -> usize {
        if all == 0 {
            return 0;
        }
        let counts = |share: &Share| match mode {
            Mode::Write => share.reads + share.writes,
            Mode::Counted | Mode::Read => share.writes,
        };
        let own = kin.iter().filter_map(|frame| self.frames.get(frame)).map(|frame| {
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

    /// Whether one of `kin` holds a key that covers `key` so that everyone who competes for the
    /// latter waits for that hold: nobody goes first then.
    pub(in crate::core) fn covers(&self, key: &Key, mode: Mode, kin: &[FrameId]) -> bool {
        kin.iter().filter_map(|frame| self.frames.get(frame)).any(|frame| {
            key.path()
                .filter_map(|covering| frame.shares.get(covering))
                .any(|share| share.writes > 0 || mode != Mode::Write && share.reads > 0)
        })
    }

    /// The hold of a slots lock by one of `kin` that a request for `count` slots can share.
    pub(in crate::core) fn base<'a>(
        &'a self,
        lock: &Lock,
        key: &'a Key,
        count: u64,
        kin: &'a [FrameId],
    ) -> Option<&'a HeldItem> {
        if lock.kind != Some(Kind::Slots) {
            return None;
        }
        self.counted_by(key, kin).find(|item| item.slots.count() >= count)
    }

    /// What some frames have of the slots of a key, their own and shared ones.
    pub(in crate::core) fn counted_by<'a>(
        &'a self,
        key: &'a Key,
        frames: &'a [FrameId],
    ) -> impl Iterator<Item = &'a HeldItem> {
        let shares = frames.iter().filter_map(|frame| self.frames.get(frame)?.shares.get(key));
        let holds = shares.flat_map(|share| &share.tokens).filter_map(|token| self.hold(*token));
        let items = holds.flat_map(|hold| hold.items.iter().filter(|item| item.key == *key));
        items.filter(|item| item.mode == Mode::Counted)
    }

    /// The item that would not fit even if every frame but `kin` left. Slots that they share with
    /// others are theirs then.
    pub(in crate::core) fn own_deadlock(&self, asked: &Request, kin: &[FrameId]) -> Option<usize> {
        asked.items.iter().position(|item| {
            let Ask::Counted { count, view } = item.ask else { return false };
            let Some(lock) = self.tree.lock(&item.key) else { return false };
            if self.base(lock, &item.key, count, kin).is_some() {
                return false;
            }
            let slots = self.counted_by(&item.key, kin).map(|item| &item.slots);
            let own = Slots::count_together(slots);
            let capacity = self.view_of(&item.key, view).map_or(0, View::capacity);
            own > 0 && own.saturating_add(count) > capacity
        })
    }
}
