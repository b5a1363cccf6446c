//! Re-entrant requests: the slots that a request can share with its own frame and with those that
//! enclose it, and the keys that these hold already.

use crate::index::counted_lock::Lock;
use crate::index::grant_order::Class;
use crate::{FrameId, HeldItem, Item, Key, Kind, Mode, Table};

impl Table {
    /// The hold of a slots lock in the lineage whose slots a request for `count` slots can share
    /// (re-entrancy). A request for more slots than any of these holds has is an ordinary request.
    pub(crate) fn shareable_hold<'a>(
        &'a self,
        lock: &Lock,
        key: &'a Key,
        count: u64,
        lineage: &'a [FrameId],
    ) -> Option<&'a HeldItem> {
        if lock.kind != Some(Kind::Slots) {
            return None;
        }
        self.counted_by(key, lineage).find(|item| item.slots.count() >= count)
    }

    /// The counted items of a key that some frames hold, both own slots and shared ones.
    pub(crate) fn counted_by<'a>(
        &'a self,
        key: &'a Key,
        frames: &'a [FrameId],
    ) -> impl Iterator<Item = &'a HeldItem> {
        let shares = frames.iter().filter_map(|frame| self.frames.get(frame)?.shares.get(key));
        let holds = shares.flat_map(|share| &share.tokens).filter_map(|token| self.hold(*token));
        let items = holds.flat_map(|hold| hold.items.iter().filter(|item| item.key == *key));
        items.filter(|item| item.mode == Mode::Counted)
    }

    /// The lock of a counted item, and the item's class there. `None` if the item can share slots
    /// of the lineage.
    pub(crate) fn contested(&self, item: &Item, lineage: &[FrameId]) -> Option<(&Lock, Class)> {
        let (count, own) = item.ask.counted()?;
        let lock = self.tree.lock(&item.key);
        let shares = self.shareable_hold(lock, &item.key, count, lineage).is_some();
        (!shares).then(|| (lock, lock.class_of(count, own)))
    }

    /// Whether the lineage holds a key that covers `key`, so that every competitor for `key` waits
    /// for that hold. Then no waiter precedes the request.
    pub(crate) fn lineage_covers(&self, key: &Key, mode: Mode, lineage: &[FrameId]) -> bool {
        lineage.iter().filter_map(|frame| self.frames.get(frame)).any(|frame| {
            key.path()
                .filter_map(|covering| frame.shares.get(covering))
                .any(|share| share.items.writes > 0 || mode != Mode::Write && share.items.reads > 0)
        })
    }
}
