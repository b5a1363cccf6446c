//! What is known of one key: who holds and who waits, here and below, and its slots.

use std::collections::{BTreeMap, BTreeSet};

use super::lock::Lock;
use super::queue::Rank;
use crate::core::{Mode, RequestId, Token};

/// What is known at one key.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Node {
    /// The holds that have an item of this very key.
    pub(in crate::core) holds: BTreeSet<Token>,
    /// Waiters for this very key that take no part, suspended or parked.
    pub(in crate::core) aside: BTreeSet<RequestId>,
    pub(in crate::core) here: Sums,
    pub(in crate::core) below: Sums,
    /// Idle where slots are neither in use nor stored.
    pub(in crate::core) lock: Lock,
}

/// Items held and waiting, at a key or below it.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Sums {
    pub(in crate::core) held: PerMode<usize>,
    /// Each waiter with the number of its items.
    pub(in crate::core) waits: PerMode<BTreeMap<Rank, usize>>,
}

/// Something of those who read (counted items among them) and of those who write.
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
    /// How many wait for the very key.
    pub(in crate::core) fn waiting(&self) -> usize {
        self.aside.len() + self.here.waits.reads.len() + self.here.waits.writes.len()
    }

    /// How many items of the very key are held in a mode.
    pub(in crate::core) fn held_here(&self, mode: Mode) -> usize {
        *self.here.held.of(mode)
    }

    /// Its slots, if they are in use or have a stored view.
    pub(in crate::core) fn lock_in_use(&self) -> Option<&Lock> {
        Some(&self.lock).filter(|lock| !lock.is_idle())
    }

    /// Whether somebody uses the very key, or it has a stored view.
    pub(in crate::core) fn is_used(&self) -> bool {
        let Self { holds, aside, here, lock, .. } = self;
        !(lock.is_idle() && holds.is_empty() && aside.is_empty() && here.is_empty())
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
