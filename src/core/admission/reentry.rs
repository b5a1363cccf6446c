//! Re-entry: what counts as one session that asks again. The holds of a frame and of the frames that
//! enclose it never conflict with its requests.

use crate::core::index::lock::Lock;
use crate::core::{FrameId, HeldItem, Key, Kind, Mode, Table};

impl Table {
    /// The lineage of a frame: itself and the frames that enclose it. Their holds never conflict
    /// with its requests. `parent` is used for a frame that is not open yet.
    pub(in crate::core) fn lineage(&self, frame: FrameId, parent: Option<FrameId>) -> Vec<FrameId> {
        if self.frames.contains_key(&frame) {
            return self.enclosing(frame).map(|frame| frame.state.id).collect();
        }
        // Most frames have no parent.
        let mut lineage = vec![frame];
        if let Some(parent) = parent {
            lineage.extend(self.enclosing(parent).map(|frame| frame.state.id));
        }
        lineage
    }

    /// Whether the lineage holds a key that covers `key`, so that every competitor for `key` waits
    /// for that hold. Then no waiter precedes the request.
    pub(in crate::core) fn lineage_covers(
        &self,
        key: &Key,
        mode: Mode,
        lineage: &[FrameId],
    ) -> bool {
        lineage.iter().filter_map(|frame| self.frames.get(frame)).any(|frame| {
            key.path()
                .filter_map(|covering| frame.shares.get(covering))
                .any(|share| share.writes > 0 || mode != Mode::Write && share.reads > 0)
        })
    }

    /// The hold of a slots lock in the lineage whose slots a request for `count` slots can share
    /// (re-entrancy).
    pub(in crate::core) fn shareable_hold<'a>(
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
    pub(in crate::core) fn counted_by<'a>(
        &'a self,
        key: &'a Key,
        frames: &'a [FrameId],
    ) -> impl Iterator<Item = &'a HeldItem> {
        let shares = frames.iter().filter_map(|frame| self.frames.get(frame)?.shares.get(key));
        let holds = shares.flat_map(|share| &share.tokens).filter_map(|token| self.hold(*token));
        let items = holds.flat_map(|hold| hold.items.iter().filter(|item| item.key == *key));
        items.filter(|item| item.mode == Mode::Counted)
    }
}
