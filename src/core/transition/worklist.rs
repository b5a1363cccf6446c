//! What is known and still to be looked at while one entry is applied.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::{Entry, FrameId, Key, Mode, Outcome, RequestId};

/// The application of one entry.
pub(in crate::core) struct Turn<'a> {
    pub(in crate::core) entry: &'a Entry,
    pub(in crate::core) outcomes: &'a mut Vec<Outcome>,
    /// Frames of which something ended.
    pub(in crate::core) touched: BTreeSet<FrameId>,
    /// `None` as long as nothing is in it, as where nobody waits.
    concerned: Option<Box<Concerned>>,
}

/// Who and what may be concerned by what was decided so far.
#[derive(Default)]
pub(in crate::core) struct Concerned {
    /// Keys at which something ended, and whether a write was among it.
    pub(in crate::core) dirty: BTreeMap<Key, bool>,
    /// Waiters that may now be granted, whatever happened at their keys.
    pub(in crate::core) retry: BTreeSet<RequestId>,
    /// All keys that were dirty since nobody could be granted.
    pub(in crate::core) seen: BTreeSet<Key>,
    /// Frames whose requests, and those inside them, may now share slots of their own, or be a
    /// deadlock with themselves.
    pub(in crate::core) grown: BTreeSet<FrameId>,
    /// Waiters that may wait for more than before, or keep more than before: who waits for one of
    /// those may now wait for whatever these can reach.
    pub(in crate::core) edges: BTreeSet<RequestId>,
    /// Waiters whose wait for a hold may have closed a ring.
    pub(in crate::core) suspects: BTreeSet<RequestId>,
}

impl<'a> Turn<'a> {
    pub(in crate::core) fn new(entry: &'a Entry, outcomes: &'a mut Vec<Outcome>) -> Self {
        Self { entry, outcomes, touched: BTreeSet::default(), concerned: None }
    }

    /// Who and what may be concerned.
    pub(in crate::core) fn concerned(&mut self) -> &mut Concerned {
        self.concerned.get_or_insert_default()
    }

    /// Something of a mode ended at a key.
    pub(in crate::core) fn soil(&mut self, key: &Key, mode: Mode) {
        *self.concerned().dirty.entry(key.clone()).or_default() |= mode == Mode::Write;
    }

    /// Some waiters may wait for more than before.
    pub(in crate::core) fn suspect(&mut self, waiters: impl IntoIterator<Item = RequestId>) {
        let concerned = self.concerned();
        for waiter in waiters {
            concerned.edges.insert(waiter);
            concerned.suspects.insert(waiter);
        }
    }
}
