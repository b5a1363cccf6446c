//! What the table keeps of one key.

use std::collections::BTreeSet;

use super::queue::{Class, Queue};
use super::slot_pool::FreeSlots;
use crate::core::{Ask, Kind, Token, View};

/// What the table keeps of one key: there is one while it is in use or has a stored view.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Lock {
    /// The view that callers follow who state none.
    pub(in crate::core) stored: Option<View>,
    /// The lock's own view while it is in use: of the slots kind the number in force, of the
    /// canal kind the stored view if there is one.
    pub(in crate::core) own: Option<View>,
    /// The kind while it is in use.
    pub(in crate::core) kind: Option<Kind>,
    /// Items held and waiting.
    pub(in crate::core) uses: usize,
    /// Slots held.
    pub(in crate::core) held: u64,
    pub(in crate::core) free: FreeSlots,
    /// The holds that share the slots of another.
    pub(in crate::core) sharers: BTreeSet<Token>,
    pub(in crate::core) queue: Queue,
}

impl Lock {
    /// The view that a request is measured by, of a lock that may not be there.
    pub(in crate::core) fn view_of(lock: Option<&Self>, stated: Option<View>) -> Option<View> {
        match lock {
            Some(lock) => lock.view_for(stated),
            None => Some(stated.unwrap_or(View::Slots { slots: 1 })),
        }
    }

    /// The view that a request is measured by; `None` if it states none and a lock of the canal
    /// kind is in use that has none of its own.
    pub(in crate::core) fn view_for(&self, stated: Option<View>) -> Option<View> {
        if let Some(View::Canal { .. }) = stated {
            return stated;
        }
        let mutex = (self.uses == 0).then_some(View::Slots { slots: 1 });
        self.own.or(self.stored).or(stated).or(mutex)
    }

    pub(in crate::core) fn class_of(&self, count: u64, stated: Option<View>) -> Class {
        let capacity = match stated {
            Some(view @ View::Canal { .. }) => Some(view.capacity()),
            Some(View::Slots { .. }) | None => None,
        };
        Class { capacity, count }
    }

    pub(in crate::core) fn capacity(&self, class: Class) -> u64 {
        class.capacity.or_else(|| self.own.map(View::capacity)).unwrap_or(0)
    }

    /// Whether a class follows a view that is too small for it: it bars nobody.
    pub(in crate::core) fn parks(&self, class: Class) -> bool {
        class.capacity.is_none() && class.count > self.capacity(class)
    }

    /// Whether as many slots are free as a class wants.
    pub(in crate::core) fn fits(&self, class: Class) -> bool {
        self.held.checked_add(class.count).is_some_and(|total| total <= self.capacity(class))
    }

    /// Notes one more use, which fixes kind and number while the lock is in use.
    pub(in crate::core) fn use_by(&mut self, ask: &Ask) {
        if let Ask::Counted { view, .. } = ask {
            self.use_as(view.or(self.stored).unwrap_or(View::Slots { slots: 1 }));
        }
    }

    /// Notes one more use under a view.
    pub(in crate::core) fn use_as(&mut self, view: View) {
        if self.uses == 0 {
            self.kind = Some(view.kind());
            self.own = match view {
                View::Canal { .. } => self.stored,
                View::Slots { .. } => Some(self.stored.unwrap_or(view)),
            };
        }
        self.uses += 1;
    }

    /// Notes one use less; the last one leaves kind and number open again.
    pub(in crate::core) fn unuse(&mut self) {
        self.uses = self.uses.saturating_sub(1);
        if self.uses == 0 {
            self.kind = None;
            self.own = None;
        }
    }

    pub(in crate::core) fn is_idle(&self) -> bool {
        self.uses == 0 && self.stored.is_none()
    }

    /// Whether nothing is left of those who used it.
    pub(in crate::core) fn is_new(&self) -> bool {
        let Self { stored, own, kind, uses, held, free, sharers, queue } = self;
        (stored, own, kind, *uses, *held) == (&None, &None, &None, 0, 0)
            && *free == FreeSlots::default()
            && sharers.is_empty()
            && queue.classes().next().is_none()
            && queue.barriers().next().is_none()
    }

    /// The kind in force: that in use, else that of the stored view.
    pub(in crate::core) fn kind_in_force(&self) -> Option<Kind> {
        self.kind.or_else(|| self.stored.map(View::kind))
    }
}
