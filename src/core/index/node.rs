//! A node of the tree of keys: holds and waiters of one key, sums over the keys below it, and its
//! counted lock.

use std::collections::{BTreeMap, BTreeSet};

use super::grant_order::Rank;
use super::lock::Lock;
use crate::core::{Mode, RequestId, Token};

/// One key of the tree.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Node {
    /// The holds with an item of this key.
    pub(in crate::core) holds: BTreeSet<Token>,
    /// Inactive waiters for this key: suspended or parked.
    pub(in crate::core) inactive: BTreeSet<RequestId>,
    pub(in crate::core) here: Sums,
    pub(in crate::core) below: Sums,
    /// Its counted lock. The lock is idle while no slots are in use, no view is stored and it is
    /// not paused.
    pub(in crate::core) lock: Lock,
}

/// The number of items that are held and waited for, at a key or below it.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Sums {
    pub(in crate::core) held: PerMode<usize>,
    /// Each waiter, with the number of its items.
    pub(in crate::core) waits: PerMode<BTreeMap<Rank, usize>>,
}

/// A value for reads (counted items among them) and a value for writes.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct PerMode<T> {
    pub(in crate::core) reads: T,
    pub(in crate::core) writes: T,
}

impl<T> PerMode<T> {
    pub(in crate::core) fn of(&self, mode: Mode) -> &T {
        if mode == Mode::Write { &self.writes } else { &self.reads }
    }

    pub(in crate::core) fn of_mut(&mut self, mode: Mode) -> &mut T {
        if mode == Mode::Write { &mut self.writes } else { &mut self.reads }
    }
}

impl Node {
    /// The number of requests that wait for this key.
    pub(in crate::core) fn waiting(&self) -> usize {
        self.inactive.len() + self.here.waits.reads.len() + self.here.waits.writes.len()
    }

    /// The number of items of this key that are held in a mode.
    pub(in crate::core) fn held_here(&self, mode: Mode) -> usize {
        *self.here.held.of(mode)
    }

    /// Its counted lock, if it is in use, has a stored view or is paused.
    pub(in crate::core) fn lock_in_use(&self) -> Option<&Lock> {
        Some(&self.lock).filter(|lock| !lock.is_idle())
    }

    /// Whether this key has a hold, a waiter or a stored view, or is paused.
    pub(in crate::core) fn is_used(&self) -> bool {
        let Self { holds, inactive, here, lock, .. } = self;
        !(lock.is_idle() && holds.is_empty() && inactive.is_empty() && here.is_empty())
    }

    pub(in crate::core) fn is_empty(&self) -> bool {
        self.below.is_empty() && !self.is_used()
    }
}

impl Sums {
    pub(in crate::core) fn is_empty(&self) -> bool {
        let Self { held, waits } = self;
        held.reads + held.writes == 0 && waits.reads.is_empty() && waits.writes.is_empty()
    }
}
