//! Decides whether a request can be granted, and names the item that prevents it.

use crate::index::grant_order::Rank;
use crate::state::table::{Contender, Share};
use crate::{FrameId, GrantedItem, Item, Key, Mode, Slots, Table};

/// Why an item cannot be granted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Too few slots are free, or another session holds a conflicting item.
    Conflict,
    /// The item is free, but another waiter precedes the request.
    Behind,
}

/// The grant of each item of a request, or the index of an item that prevents it.
pub(crate) type Admission = Result<Vec<GrantedItem>, (usize, Obstacle)>;

impl Table {
    /// Whether a request can be granted.
    pub(crate) fn admission(&self, contender: &Contender<'_>) -> Admission {
        self.admission_at(Some(contender.rank), contender)
    }

    /// Whether a request could be granted at a rank, or (`None`) if there were no other waiter.
    pub(crate) fn admission_at(&self, rank: Option<Rank>, contender: &Contender<'_>) -> Admission {
        let Contender { asked, lineage, .. } = contender;
        let mut items = Vec::with_capacity(asked.items.len());
        let mut first_behind = None;
        for (index, item) in asked.items.iter().enumerate() {
            match self.item_admission(item, lineage, rank) {
                Ok(given) => items.push(given),
                Err(Obstacle::Conflict) => return Err((index, Obstacle::Conflict)),
                Err(Obstacle::Behind) => first_behind = first_behind.or(Some(index)),
            }
        }
        first_behind.map_or(Ok(items), |index| Err((index, Obstacle::Behind)))
    }

    fn item_admission(
        &self,
        item: &Item,
        lineage: &[FrameId],
        rank: Option<Rank>,
    ) -> Result<GrantedItem, Obstacle> {
        let (key, mode) = (&item.key, item.ask.mode());
        if self.foreign_conflicts(key, mode, lineage) > 0 {
            return Err(Obstacle::Conflict);
        }
        let given = if let Some((count, own)) = item.ask.counted() {
            let lock = self.tree.lock(key);
            if let Some(base) = self.shareable_hold(lock, key, count, lineage) {
                let slots = base.slots.lowest(count);
                return Ok(GrantedItem {
                    acquired: lock.held,
                    slots,
                    shared: true,
                    view: base.view,
                });
            }
            let class = lock.class_of(count, own);
            if lock.settings.paused || !lock.fits(class) {
                return Err(Obstacle::Conflict);
            }
            if rank.is_some_and(|rank| lock.first_ahead(class.capacity, rank).is_some()) {
                return Err(Obstacle::Behind);
            }
            let view = lock.view_of(own);
            let slots = lock.choose(count, view, item.ask.is_spread());
            let acquired = lock.held.saturating_add(count);
            GrantedItem { acquired, slots, shared: false, view: Some(view) }
        } else {
            let held = self.tree.node(key).map_or(0, |node| *node.here.held.of(mode));
            let acquired = held as u64 + 1;
            GrantedItem { acquired, slots: Slots::default(), shared: false, view: None }
        };
        // Most tables have no waiters.
        let is_behind = rank.filter(|_| !self.waiters.is_empty()).is_some_and(|rank| {
            self.tree.first_before(key, mode, rank).is_some()
                && !self.lineage_covers(key, mode, lineage)
        });
        if is_behind { Err(Obstacle::Behind) } else { Ok(given) }
    }

    /// The number of items held outside the lineage that conflict with an item of a key.
    pub(crate) fn foreign_conflicts(&self, key: &Key, mode: Mode, lineage: &[FrameId]) -> usize {
        let all = self.tree.conflicts(key, mode);
        if all == 0 {
            return 0;
        }
        let counts = |share: &Share| share.items.against(mode).sum::<usize>();
        let own = lineage.iter().filter_map(|frame| self.frames.get(frame)).map(|frame| {
            let above = key.path().filter_map(|covering| frame.shares.get(covering));
            let below = key.below_in(&frame.shares).map(|(_, share)| share);
            above.chain(below).map(|share| counts(share)).sum::<usize>()
        });
        all - own.sum::<usize>()
    }

    /// The item that would not fit even if every frame outside the lineage released its slots.
    /// Slots that the lineage shares with other frames then count as the lineage's own.
    pub(crate) fn own_deadlock(&self, contender: &Contender<'_>) -> Option<usize> {
        contender.asked.items.iter().position(|item| {
            let Some((lock, class)) = self.contested(item, &contender.lineage) else {
                return false;
            };
            let own = self.counted_by(&item.key, &contender.lineage);
            let held = lock.in_service(class.unit, own.map(|item| &item.slots));
            held > 0 && held.saturating_add(class.count) > class.capacity
        })
    }
}
