//! The state of one transition: what remains to be examined while an entry is applied.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Entry, FrameId, Key, Mode, Outcome, RequestId};

/// The application of one entry.
pub(crate) struct Transition<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) outcomes: &'a mut Vec<Outcome>,
    /// Frames that lost a hold or a request, and may be empty.
    pub(crate) touched: BTreeSet<FrameId>,
    /// `None` while it is empty, so that a table without waiters never allocates it.
    worklist: Option<Box<Worklist>>,
}

/// Everything that the outcomes so far may affect.
#[derive(Default)]
pub(crate) struct Worklist {
    /// Keys at which a hold or a request ended, and whether a write was among them.
    pub(crate) dirty: BTreeMap<Key, bool>,
    /// Waiters to try again regardless of their keys.
    pub(crate) retry: BTreeSet<RequestId>,
    /// All keys that were dirty since the last pass without a grant.
    pub(crate) changed_keys: BTreeSet<Key>,
    /// Frames whose holds changed. Their requests, and those of frames inside them, may now share
    /// slots, or deadlock with themselves.
    pub(crate) holdings_changed: BTreeSet<FrameId>,
    /// Waiters that may wait for more than before, or block more than before. A request that waits
    /// for one of them may now wait for everything that this one can reach.
    pub(crate) new_waits: BTreeSet<RequestId>,
    /// Waiters whose wait for a hold may have closed a cycle.
    pub(crate) deadlock_candidates: BTreeSet<RequestId>,
}

impl<'a> Transition<'a> {
    pub(crate) fn new(entry: &'a Entry, outcomes: &'a mut Vec<Outcome>) -> Self {
        Self { entry, outcomes, touched: BTreeSet::default(), worklist: None }
    }

    /// The work that remains.
    pub(crate) fn worklist(&mut self) -> &mut Worklist {
        self.worklist.get_or_insert_default()
    }

    /// Records that a hold or a request of a mode ended at a key.
    pub(crate) fn mark_dirty(&mut self, key: &Key, mode: Mode) {
        *self.worklist().dirty.entry(key.clone()).or_default() |= mode == Mode::Write;
    }

    /// Records waiters that may wait for more than before.
    pub(crate) fn add_candidates(&mut self, waiters: impl IntoIterator<Item = RequestId>) {
        let worklist = self.worklist();
        for waiter in waiters {
            worklist.new_waits.insert(waiter);
            worklist.deadlock_candidates.insert(waiter);
        }
    }
}
