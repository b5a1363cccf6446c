//! Why a request waits: its blockers, and the reason in front of all others.

use std::collections::BTreeSet;

use crate::index::grant_order::Class;
use crate::index::key_tree::conflict;
use crate::state::table::Contender;
use crate::{
    By, FrameId, HeldItem, Item, Key, Mode, Request, RequestId, Table, Token, WaitFor, WaiterStatus,
};

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
    /// The blockers of a waiting request: for each item that is not free, all conflicting holds, or
    /// else all waiters that precede it. Linear in their number.
    pub fn blockers(&self, request: RequestId) -> Vec<WaitFor> {
        self.waits(request, |contender, item| {
            let mut by = self.blocking(item, &contender.lineage);
            if by.is_empty() {
                let ahead = self.predecessors_of_item(contender, item);
                by.extend(ahead.filter_map(|id| Some(By::Waiter(id, self.waiter(id)?.frame))));
            }
            by
        })
    }

    /// The holds that block a waiting request.
    pub(crate) fn waits_for_holds(&self, request: RequestId) -> Vec<WaitFor> {
        self.waits(request, |contender, item| self.blocking(item, &contender.lineage))
    }

    /// The waits of a request, with what blocks each item.
    fn waits(
        &self,
        request: RequestId,
        blocking: impl Fn(&Contender<'_>, &Item) -> Vec<By>,
    ) -> Vec<WaitFor> {
        let Some(waiter) = self.waiters.get(&request) else { return Vec::new() };
        let (contender, frame) = (self.contender(waiter), waiter.frame);
        let items = waiter.request.items.iter().enumerate();
        let waits = items.flat_map(|(item, wanted)| {
            let by = blocking(&contender, wanted).into_iter();
            by.map(move |by| WaitFor { request, frame, item, key: wanted.key.clone(), by })
        });
        waits.collect()
    }

    /// The holds that block one item of a waiting request.
    fn blocking(&self, item: &Item, lineage: &[FrameId]) -> Vec<By> {
        let holds: BTreeSet<Token> = self.blocking_tokens(item, lineage, lineage).collect();
        let by_hold = |token| Some(By::Hold(token, self.hold(token)?.frame));
        holds.into_iter().filter_map(by_hold).collect()
    }

    /// The holds that block an item: those of its own key first, oldest first; a hold can occur
    /// twice. The slots of the `exempt` frames block nothing.
    fn blocking_tokens<'a>(
        &'a self,
        item: &'a Item,
        lineage: &'a [FrameId],
        exempt: &'a [FrameId],
    ) -> impl Iterator<Item = Token> + 'a {
        let Item { key, ask } = item;
        let is_full = self.contested(item, lineage).is_some_and(|(lock, class)| !lock.fits(class));
        let counted = is_full.then(|| self.holders(key)).into_iter().flatten();
        let counted = counted.filter(|token| self.is_counted_of_others(*token, key, exempt));
        counted.chain(self.conflicting_holds(key, ask.mode(), lineage))
    }

    /// The holds that block an item of a request that waits or arrives next; empty if only other
    /// waiters precede it. At most `max`: those of the item's own key first, oldest first.
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
        let exempt = if own == OwnSlots::Count { &[][..] } else { &lineage };
        let mut seen = BTreeSet::new();
        let holds = self.blocking_tokens(item, &lineage, exempt);
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
