//! What is known of one key: who holds and who waits, here and below, and its slots.

use std::collections::{BTreeMap, BTreeSet};

use super::lock::Lock;
use super::queue::Rank;
use super::{Mode, RequestId, Token};

/// What is known at one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// The holds that have an item of this very key.
    pub(super) holds: BTreeSet<Token>,
    /// Waiters for this very key that take no part, suspended or parked.
    pub(super) aside: BTreeSet<RequestId>,
    pub(super) here: Sums,
    pub(super) below: Sums,
    /// Idle where slots are neither in use nor stored.
    pub(super) lock: Lock,
}

/// Items held and waiting, at a key or below it.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) held: PerMode<usize>,
    /// Each waiter with the number of its items.
    pub(super) waits: PerMode<BTreeMap<Rank, usize>>,
}

/// Something of those who read (counted items among them) and of those who write.
#[derive(Clone, Debug, Default)]
pub(super) struct PerMode<T> {
    pub(super) reads: T,
    pub(super) writes: T,
}

impl<T> PerMode<T> {
    pub(super) fn of(&self, mode: Mode) -> &T {
        if mode == Mode::Write { &self.writes } else { &self.reads }
    }

    pub(super) fn of_mut(&mut self, mode: Mode) -> &mut T {
        if mode == Mode::Write { &mut self.writes } else { &mut self.reads }
    }
}

impl Node {
    /// How many wait for the very key.
    pub(super) fn waiting(&self) -> usize {
        self.aside.len() + self.here.waits.reads.len() + self.here.waits.writes.len()
    }

    /// How many items of the very key are held in a mode.
    pub(super) fn held_here(&self, mode: Mode) -> usize {
        *self.here.held.of(mode)
    }

    /// Its slots, if they are in use or have a stored view.
    pub(super) fn lock_in_use(&self) -> Option<&Lock> {
        Some(&self.lock).filter(|lock| !lock.is_idle())
    }

    /// Whether somebody uses the very key, or it has a stored view.
    pub(super) fn is_used(&self) -> bool {
        let Self { holds, aside, here, lock, .. } = self;
        !(lock.is_idle() && holds.is_empty() && aside.is_empty() && here.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.below.is_empty() && !self.is_used()
    }
}

impl Sums {
    pub(super) fn is_empty(&self) -> bool {
        let Self { held, waits } = self;
        held.reads + held.writes == 0 && waits.reads.is_empty() && waits.writes.is_empty()
    }
}
