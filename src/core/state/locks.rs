//! Counted locks: their uses, the views that count, the slots that a request can share, and what can
//! never be granted while nobody resizes or resumes a key.

use std::borrow::Cow;
use std::sync::Arc;

use crate::core::index::grant_order::Class;
use crate::core::index::lock::Lock;
use crate::core::model::InvalidOutcome;
use crate::core::{
    Ask, Change, Entry, FrameId, HeldItem, Key, Kind, Mode, Request, RequestId, Table, Token, View,
    WaiterState, WaiterStatus,
};

/// Why a request can never be granted while nobody resizes or resumes a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Misfit {
    /// A key is paused.
    Paused { item: usize },
    /// It wants more slots at once than the view that counts has.
    TooLarge { item: usize, capacity: u64 },
}

impl Misfit {
    /// Which one is reported if several apply: the smallest.
    fn order(self) -> (u8, usize) {
        match self {
            Self::Paused { item } => (0, item),
            Self::TooLarge { item, capacity: 0 } => (1, item),
            Self::TooLarge { item, .. } => (2, item),
        }
    }
}

impl Table {
    /// Counts a use of the lock of each counted item of a request.
    pub(in crate::core) fn use_locks(&mut self, asked: &Request) {
        for item in asked.items.iter().filter(|item| item.ask.mode() == Mode::Counted) {
            self.tree.change_lock(&item.key, |lock| lock.use_by(&item.ask));
        }
    }

    pub(in crate::core) fn remove_use(&mut self, key: &Key, mode: Mode) {
        if mode == Mode::Counted {
            self.tree.change_lock(key, Lock::remove_use);
        }
    }

    pub(in crate::core) fn store_view(&mut self, entry: &Entry) -> Result<(), InvalidOutcome> {
        let Change::Resize { key, view } = &entry.change else {
            return Err("a view was stored by an entry that is no resize".to_owned().into());
        };
        self.change_setting(key, |lock| lock.stored = *view);
        Ok(())
    }

    pub(in crate::core) fn store_pause(&mut self, entry: &Entry) -> Result<(), InvalidOutcome> {
        let Change::Pause { key, paused } = &entry.change else {
            return Err("a key was paused by an entry that is no pause".to_owned().into());
        };
        self.change_setting(key, |lock| lock.paused = *paused);
        for id in self.served(key) {
            let Some(waiter) = self.waiters.get(&id).filter(|waiter| waiter.size_unchecked) else {
                continue;
            };
            let unchecked = self.awaits_resumption(&waiter.request, waiter.frame);
            if let Some(waiter) = self.waiters.get_mut(&id) {
                waiter.size_unchecked = unchecked;
            }
        }
        Ok(())
    }

    /// Changes what is stored of a lock. Its waiters are queued again: they may have another
    /// capacity now, and may be parked or not parked any more.
    fn change_setting(&mut self, key: &Key, change: impl FnOnce(&mut Lock)) {
        let waiters = self.served(key);
        for id in &waiters {
            self.dequeue(*id);
        }
        self.tree.change_lock(key, change);
        for id in &waiters {
            self.enqueue(*id);
        }
    }

    /// A request as the table stores it: each counted item without a view is given the one that
    /// such items of its key follow now. It keeps that view.
    pub(in crate::core) fn sized<'r>(&self, asked: &'r Request) -> Cow<'r, Request> {
        let mut sized = Cow::Borrowed(asked);
        for (at, item) in asked.items.iter().enumerate() {
            let Ask::Counted { count, view: None, given } = item.ask else { continue };
            let followed = Some(self.followed(&item.key)).filter(|view| *view != View::ONE);
            if given != followed {
                let ask = Ask::Counted { count, view: None, given: followed };
                sized.to_mut().items[at].ask = ask;
            }
        }
        sized
    }

    /// The same for a request that is stored. Most requests stay shared.
    pub(in crate::core) fn stored_form(&self, asked: &Arc<Request>) -> Arc<Request> {
        match self.sized(asked) {
            Cow::Borrowed(_) => Arc::clone(asked),
            Cow::Owned(sized) => Arc::new(sized),
        }
    }

    /// The view of a request that states none, where none is stored: the view stated by the latest
    /// hold that stated one, else one slot. Linear in the number of later holds that stated none.
    pub(in crate::core) fn followed(&self, key: &Key) -> View {
        if let Some((_, latest)) = self.stated_by_holds(key).next() {
            return latest;
        }
        match self.tree.lock(key).and_then(Lock::kind_in_force) {
            Some(Kind::Buckets) => View::Buckets { per: 1, buckets: 1 },
            Some(Kind::Slots) | None => View::ONE,
        }
    }

    /// The holds of a key that state a view, and these views, latest first.
    pub(in crate::core) fn stated_by_holds(
        &self,
        key: &Key,
    ) -> impl Iterator<Item = (Token, View)> {
        let tokens = self.tree.node(key).into_iter().flat_map(|node| node.holds.iter().rev());
        tokens.filter_map(move |token| {
            let mut items = self.hold(*token)?.items.iter();
            let item = items.find(|item| item.key == *key && item.stated.is_some())?;
            Some((*token, item.stated?))
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

    /// Why a request can never be granted while nobody resizes or resumes a key. What can share
    /// slots fits always.
    pub(in crate::core) fn misfit(&self, asked: &Request, lineage: &[FrameId]) -> Option<Misfit> {
        let misfits = asked.items.iter().enumerate().filter_map(|(item, wanted)| {
            let (count, own) = wanted.ask.counted()?;
            let lock = self.tree.lock(&wanted.key);
            let capacity = Lock::view_of(lock, own).capacity();
            let paused = lock.is_some_and(|lock| lock.paused);
            if !paused && count <= capacity {
                return None;
            }
            let shares = lock
                .and_then(|lock| self.shareable_hold(lock, &wanted.key, count, lineage))
                .is_some();
            let misfit =
                if paused { Misfit::Paused { item } } else { Misfit::TooLarge { item, capacity } };
            (!shares).then_some(misfit)
        });
        misfits.min_by_key(|misfit| misfit.order())
    }

    /// Whether a request of a frame waits for a key to be resumed.
    pub(in crate::core) fn awaits_resumption(&self, asked: &Request, frame: FrameId) -> bool {
        let misfit = self.misfit(asked, &self.lineage(frame, None));
        matches!(misfit, Some(Misfit::Paused { .. }))
    }

    /// Whether a waiter belongs into no queue: its process is stopped, or it is parked.
    pub(in crate::core) fn must_rest(&self, waiter: &WaiterState) -> bool {
        waiter.status == WaiterStatus::Suspended
            || self.misfit(&waiter.request, &self.lineage(waiter.frame, None)).is_some()
    }

    /// Queues the waiters of a frame's session again that are parked now, or not any more, because
    /// the session can share other slots of some keys than before.
    pub(in crate::core) fn requeue_session<'k>(
        &mut self,
        frame: FrameId,
        mut keys: impl Iterator<Item = &'k Key>,
    ) {
        let session = self.sessions.get(&self.session(frame));
        let waits = session.is_some_and(|session| session.waiters > 0);
        if !waits || !keys.any(|key| self.may_park(key)) {
            return;
        }
        let frames = session.into_iter().flat_map(|session| &session.frames);
        let waiters = frames.filter_map(|frame| self.frames.get(frame)).flat_map(|it| &it.waiters);
        let waiters = waiters.filter_map(|id| self.waiters.get(id));
        let changed = waiters.filter(|waiter| self.must_rest(waiter) != self.is_inactive(waiter));
        let changed: Vec<RequestId> = changed.map(|waiter| waiter.id).collect();
        for id in changed {
            self.dequeue(id);
            self.enqueue(id);
        }
    }

    /// Whether a waiter for a key can be parked, or would be if it could not share slots.
    fn may_park(&self, key: &Key) -> bool {
        self.tree.node(key).is_some_and(|node| {
            let barriers = node.lock.queue.barriers().map(|(_, class)| class);
            let mut classes = node.lock.queue.classes().chain(barriers);
            let is_small = |class: Class| class.count > class.capacity;
            node.lock.paused || !node.inactive.is_empty() || classes.any(is_small)
        })
    }
}
