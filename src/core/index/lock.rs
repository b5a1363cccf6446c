//! What the table keeps of one key.

use std::collections::BTreeSet;

use super::grant_order::{Class, Queue};
use super::slot_pool::SlotPool;
use crate::core::{Ask, Kind, Token, View};

/// The counted lock of one key. It is in use while items of it are held or waited for.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Lock {
    /// The stored view: requests that state no view use it.
    pub(in crate::core) stored: Option<View>,
    /// The lock's own view while it is in use. Slots kind: the number in force. Buckets kind: the
    /// stored view, if there is one.
    pub(in crate::core) own: Option<View>,
    /// The kind, while the lock is in use.
    pub(in crate::core) kind: Option<Kind>,
    /// How many items are held or waited for.
    pub(in crate::core) uses: usize,
    /// How many slots are held.
    pub(in crate::core) held: u64,
    pub(in crate::core) free: SlotPool,
    /// The holds that share the slots of another hold.
    pub(in crate::core) sharers: BTreeSet<Token>,
    pub(in crate::core) queue: Queue,
}

impl Lock {
    /// The view that applies to a request, for a lock that may not exist.
    pub(in crate::core) fn view_of(lock: Option<&Self>, stated: Option<View>) -> Option<View> {
        match lock {
            Some(lock) => lock.view_for(stated),
            None => Some(stated.unwrap_or(View::Slots { slots: 1 })),
        }
    }

    /// The view that applies to a request. `None` if the request states no view and a lock of the
    /// buckets kind without a stored view is in use.
    pub(in crate::core) fn view_for(&self, stated: Option<View>) -> Option<View> {
        if let Some(View::Buckets { .. }) = stated {
            return stated;
        }
        let mutex = (self.uses == 0).then_some(View::Slots { slots: 1 });
        self.own.or(self.stored).or(stated).or(mutex)
    }

    pub(in crate::core) fn class_of(&self, count: u64, stated: Option<View>) -> Class {
        let capacity = match stated {
            Some(view @ View::Buckets { .. }) => Some(view.capacity()),
            Some(View::Slots { .. }) | None => None,
        };
        Class { capacity, count }
    }

    pub(in crate::core) fn capacity(&self, class: Class) -> u64 {
        class.capacity.or_else(|| self.own.map(View::capacity)).unwrap_or(0)
    }

    /// Whether a class uses a view that is smaller than what it wants. Such a waiter is parked and
    /// precedes no other.
    pub(in crate::core) fn parks(&self, class: Class) -> bool {
        class.capacity.is_none() && class.count > self.capacity(class)
    }

    /// Whether enough slots are free for a class.
    pub(in crate::core) fn fits(&self, class: Class) -> bool {
        self.held.checked_add(class.count).is_some_and(|total| total <= self.capacity(class))
    }

    /// Counts one more use. The first use fixes the kind and the number of slots.
    pub(in crate::core) fn use_by(&mut self, ask: &Ask) {
        if let Ask::Counted { view, .. } = ask {
            self.use_as(view.or(self.stored).unwrap_or(View::Slots { slots: 1 }));
        }
    }

    /// Counts one more use, under a view.
    pub(in crate::core) fn use_as(&mut self, view: View) {
        if self.uses == 0 {
            self.kind = Some(view.kind());
            self.own = match view {
                View::Buckets { .. } => self.stored,
                View::Slots { .. } => Some(self.stored.unwrap_or(view)),
            };
        }
        self.uses += 1;
    }

    /// Counts one use less. After the last use, kind and number are open again.
    pub(in crate::core) fn remove_use(&mut self) {
        self.uses = self.uses.saturating_sub(1);
        if self.uses == 0 {
            self.kind = None;
            self.own = None;
        }
    }

    pub(in crate::core) fn is_idle(&self) -> bool {
        self.uses == 0 && self.stored.is_none()
    }

    /// Whether the lock is as it was before its first use.
    pub(in crate::core) fn is_new(&self) -> bool {
        let Self { stored, own, kind, uses, held, free, sharers, queue } = self;
        (stored, own, kind, *uses, *held) == (&None, &None, &None, 0, 0)
            && *free == SlotPool::default()
            && sharers.is_empty()
            && queue.classes().next().is_none()
            && queue.barriers().next().is_none()
    }

    /// The kind in use, else the kind of the stored view.
    pub(in crate::core) fn kind_in_force(&self) -> Option<Kind> {
        self.kind.or_else(|| self.stored.map(View::kind))
    }
}
