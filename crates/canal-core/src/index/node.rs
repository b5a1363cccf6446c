//! A node of the tree of keys: holds and waiters of one key, sums over the keys below it, and its
//! counted lock.

use std::collections::{BTreeMap, BTreeSet};

use super::grant_order::Rank;
use super::lock::Lock;
use crate::{Mode, RequestId, Token};

/// One key of the tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// The holds with an item of this key.
    pub(crate) holds: BTreeSet<Token>,
    /// Inactive waiters for this key: suspended or parked.
    pub(crate) inactive: BTreeSet<RequestId>,
    pub(crate) here: Sums,
    pub(crate) below: Sums,
    /// Its counted lock. The lock is idle while no slots are in use, no view is stored and it is
    /// not paused.
    pub(crate) lock: Lock,
}

/// The number of items that are held and waited for, at a key or below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) held: PerMode<usize>,
    /// Each waiter, with the number of its items.
    pub(crate) waits: PerMode<BTreeMap<Rank, usize>>,
}

/// A value for reads (counted items among them) and a value for writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerMode<T> {
    pub(crate) reads: T,
    pub(crate) writes: T,
}

impl<T> PerMode<T> {
    pub(crate) fn of(&self, mode: Mode) -> &T {
        if mode == Mode::Write { &self.writes } else { &self.reads }
    }

    pub(crate) fn of_mut(&mut self, mode: Mode) -> &mut T {
        if mode == Mode::Write { &mut self.writes } else { &mut self.reads }
    }
}

impl Node {
    /// The number of requests that wait for this key.
    pub(crate) fn waiting(&self) -> usize {
        self.inactive.len() + self.here.waits.reads.len() + self.here.waits.writes.len()
    }

    /// The number of items of this key that are held in a mode.
    pub(crate) fn held_here(&self, mode: Mode) -> usize {
        *self.here.held.of(mode)
    }

    /// Its counted lock, if it is in use, has a stored view or is paused.
    pub(crate) fn lock_in_use(&self) -> Option<&Lock> {
        Some(&self.lock).filter(|lock| !lock.is_idle())
    }

    /// Whether this key has a hold, a waiter or a stored view, or is paused.
    pub(crate) fn is_used(&self) -> bool {
        let Self { holds, inactive, here, lock, .. } = self;
        !(lock.is_idle() && holds.is_empty() && inactive.is_empty() && here.is_empty())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.below.is_empty() && !self.is_used()
    }
}

impl Sums {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { held, waits } = self;
        held.reads + held.writes == 0 && waits.reads.is_empty() && waits.writes.is_empty()
    }
}
