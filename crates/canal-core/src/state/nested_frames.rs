//! Frames: they open with the first request of an owner, and are dropped when they are empty. A
//! request can share slots with its own frame and with those that enclose it.

use std::borrow::Cow;
use std::sync::Arc;

use super::table::{Contender, Frame, owner_key};
use crate::index::counted_lock::Lock;
use crate::index::grant_order::{Class, Rank};
use crate::{
    FrameId, FrameState, HeldItem, Item, Key, Kind, LeaseState, Mode, Owner, Request, RequestId,
    Result, Table, WaiterState,
};

impl Table {
    /// The parent of the frame that a request would open: the frame that it names, unless that has
    /// ended. Over an engine, the frame may end between the proposal and its place in the log.
    pub(crate) fn live_parent(&self, asked: &Request) -> Option<FrameId> {
        asked.parent.filter(|parent| self.frame(*parent).is_some_and(|frame| !frame.ended))
    }

    /// The parent of a frame.
    pub(crate) fn parent_of(&self, frame: FrameId) -> Option<FrameId> {
        self.frames.get(&frame)?.state.parent
    }

    /// The lineage of a frame: itself and the frames that enclose it. Their holds never conflict
    /// with its requests. `parent` is used for a frame that is not open yet. A jobserver has no
    /// lineage, because no two of its job tokens may share a slot.
    pub(crate) fn lineage(&self, frame: FrameId, parent: Option<FrameId>) -> Vec<FrameId> {
        let open = self.frames.get(&frame).map(|open| &open.state);
        if open.is_some_and(|open| matches!(open.owner, Owner::Jobserver(_))) {
            return Vec::new();
        }
        let mut lineage = vec![frame];
        // Most frames have no parent.
        if let Some(parent) = open.map_or(parent, |open| open.parent) {
            lineage.extend(self.enclosing(parent).map(|frame| frame.state.id));
        }
        lineage
    }

    /// A waiter among the requests that compete for its items.
    pub(crate) fn contender<'a>(&self, waiter: &'a WaiterState) -> Contender<'a> {
        let lineage = self.lineage(waiter.frame, None);
        let (asked, rank) = (Cow::Borrowed(&*waiter.request), Rank::of(waiter));
        Contender { asked, frame: waiter.frame, lineage, rank }
    }

    /// A new request among those that compete for its items. It opens a frame with the number `id`
    /// if its owner has none.
    pub(crate) fn newcomer<'a>(&self, asked: Cow<'a, Request>, id: RequestId) -> Contender<'a> {
        let frame = self.frame_of(asked.host, &asked.owner).unwrap_or(FrameId(id.0));
        let lineage = self.lineage(frame, self.live_parent(&asked));
        Contender { frame, lineage, rank: Rank::ordinary(asked.priority, id), asked }
    }

    /// Opens the frame of a request if it is not open yet.
    pub(crate) fn open_frame(&mut self, id: FrameId, asked: &Request) -> Result {
        if self.frames.contains_key(&id) {
            return Ok(());
        }
        if id.0 != self.globals.revision.0 {
            return Err(format!("no frame {id}"));
        }
        self.add_frame(FrameState {
            id,
            host: asked.host,
            owner: asked.owner.clone(),
            parent: self.live_parent(asked),
            uid: asked.uid,
            ended: false,
            lease: asked.ttl_ms.map(|ttl_ms| LeaseState { ttl_ms, renewals: 0, renewed: None }),
        });
        Ok(())
    }

    /// Adds a frame whose parent exists.
    pub(crate) fn add_frame(&mut self, state: FrameState) {
        let id = state.id;
        let root = state.parent.map_or(id, |parent| self.session(parent));
        if let Some(parent) = state.parent.and_then(|parent| self.frames.get_mut(&parent)) {
            parent.children += 1;
        }
        if !state.ended {
            self.owners.insert(owner_key(state.host, &state.owner), id);
        }
        self.sessions.entry(root).or_default().frames.insert(id);
        let (holds, shares, waiters) = Default::default();
        self.frames
            .insert(id, Box::new(Frame { state, root, children: 0, holds, shares, waiters }));
    }

    pub(crate) fn drop_frame(&mut self, id: FrameId) -> Result {
        let frame = self.frames.remove(&id).ok_or_else(|| format!("no frame {id}"))?;
        if !frame.state.ended {
            self.owners.remove(&owner_key(frame.state.host, &frame.state.owner));
        }
        if let Some(parent) = frame.state.parent.and_then(|parent| self.frames.get_mut(&parent)) {
            parent.children -= 1;
        }
        if let Some(session) = self.sessions.get_mut(&frame.root) {
            session.frames.remove(&id);
            if session.frames.is_empty() {
                self.sessions.remove(&frame.root);
                self.hold_and_wait.remove(&frame.root);
            }
        }
        Ok(())
    }

    pub(crate) fn mark_ended(&mut self, id: FrameId) {
        let Some(frame) = self.frames.get_mut(&id) else { return };
        frame.state.ended = true;
        self.owners.remove(&owner_key(frame.state.host, &frame.state.owner));
        for token in &frame.holds {
            if let Some(hold) = self.holds.get_mut(token) {
                Arc::make_mut(hold).orphaned = true;
            }
        }
    }

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

/// Sets the parent that the table found. Usually the request already names it, and stays shared.
pub(crate) fn with_parent(mut asked: Arc<Request>, parent_of: Option<FrameId>) -> Arc<Request> {
    if asked.parent != parent_of {
        Arc::make_mut(&mut asked).parent = parent_of;
    }
    asked
}
