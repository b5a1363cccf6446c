//! The counted lock of one key.

use std::collections::BTreeSet;

use super::grant_order::{Class, Queue};
use super::slot_pool::SlotPool;
use crate::core::{Ask, Kind, Token, View};

/// The counted lock of one key. It is in use while items of it are held or waited for.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Lock {
    /// The stored view, which applies to every request.
    pub(in crate::core) stored: Option<View>,
    /// Whether the lock grants only slots that a request can share.
    pub(in crate::core) paused: bool,
    /// The kind, while the lock is in use.
    pub(in crate::core) kind: Option<Kind>,
    /// The number of items that are held or waited for.
    pub(in crate::core) uses: usize,
    /// The number of slots that are held.
    pub(in crate::core) held: u64,
    pub(in crate::core) free: SlotPool,
    /// The holds that share the slots of another hold.
    pub(in crate::core) sharers: BTreeSet<Token>,
    pub(in crate::core) queue: Queue,
}

impl Lock {
    /// The view that applies to an item that states `own`, at a lock that may not exist.
    pub(in crate::core) fn view_of(lock: Option<&Self>, own: Option<View>) -> View {
        lock.and_then(|lock| lock.stored).or(own).unwrap_or(View::ONE)
    }

    pub(in crate::core) fn class_of(&self, count: u64, own: Option<View>) -> Class {
        Class { capacity: Self::view_of(Some(self), own).capacity(), count }
    }

    /// Whether enough slots are free for a class.
    pub(in crate::core) fn fits(&self, class: Class) -> bool {
        self.held.checked_add(class.count).is_some_and(|total| total <= class.capacity)
    }

    /// Counts one more use. The first use fixes the kind.
    pub(in crate::core) fn use_by(&mut self, ask: &Ask) {
        if let Some((_, own)) = ask.counted() {
            self.use_as(Self::view_of(Some(self), own).kind());
        }
    }

    /// Counts one more use, as a lock of this kind.
    pub(in crate::core) fn use_as(&mut self, kind: Kind) {
        if self.uses == 0 {
            self.kind = Some(kind);
        }
        self.uses += 1;
    }

    /// Counts one use less. After the last use, the lock can take another kind.
    pub(in crate::core) fn remove_use(&mut self) {
        self.uses = self.uses.saturating_sub(1);
        if self.uses == 0 {
            self.kind = None;
        }
    }

    pub(in crate::core) fn is_idle(&self) -> bool {
        self.uses == 0 && self.stored.is_none() && !self.paused
    }

    /// Whether the lock is as it was before its first use.
    pub(in crate::core) fn is_new(&self) -> bool {
        let Self { stored, paused, kind, uses, held, free, sharers, queue } = self;
        (stored, *paused, kind, *uses, *held) == (&None, false, &None, 0, 0)
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
