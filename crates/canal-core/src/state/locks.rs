//! Counted locks: their uses, the views that apply, the slots that a request can share, and the
//! requests that can never be granted unless someone resizes or resumes a key.

use std::borrow::Cow;
use std::sync::Arc;

use super::table::Contender;
use crate::index::counted_lock::Lock;
use crate::index::grant_order::Class;
use crate::{Ask, FrameId, HeldItem, Item, Key, Kind, Mode, Refusal, Request, Table, Token, View};

impl Table {
    /// Counts a use of the lock of each counted item of a request.
    pub(crate) fn use_locks(&mut self, asked: &Request) {
        for item in asked.items.iter().filter(|item| item.ask.mode() == Mode::Counted) {
            self.tree.change_lock(&item.key, |lock| lock.use_by(&item.ask));
        }
    }

    pub(crate) fn remove_use(&mut self, key: &Key, mode: Mode) {
        if mode == Mode::Counted {
            self.tree.change_lock(key, Lock::remove_use);
        }
    }

    /// A request as the table stores it: each counted item without a view gets the one that such
    /// items of its key follow now. It keeps that view. If it followed later changes, the end of a
    /// hold could leave a waiter stuck.
    pub(crate) fn sized<'r>(&self, asked: &'r Request) -> Cow<'r, Request> {
        let mut sized = Cow::Borrowed(asked);
        for (at, item) in asked.items.iter().enumerate() {
            let Ask::Counted { count, view: None, given, spread } = item.ask else { continue };
            let followed = Some(self.followed(&item.key)).filter(|view| *view != View::ONE);
            if given != followed {
                let ask = Ask::Counted { count, view: None, given: followed, spread };
                sized.to_mut().items[at].ask = ask;
            }
        }
        sized
    }

    /// A shared request as the table stores it. Most requests need no change and stay shared.
    pub(crate) fn stored_form(&self, asked: &Arc<Request>) -> Arc<Request> {
        match self.sized(asked) {
            Cow::Borrowed(_) => Arc::clone(asked),
            Cow::Owned(sized) => Arc::new(sized),
        }
    }

    /// The view of a request that states none, where none is stored: the view of the latest hold
    /// that stated one, else one slot. Linear in the number of later holds that stated none.
    ///
    /// Holds that stated none do not count; otherwise a size would outlive every caller that stated
    /// it.
    pub(crate) fn followed(&self, key: &Key) -> View {
        if let Some((_, latest)) = self.stated_by_holds(key).next() {
            return latest;
        }
        match self.tree.lock(key).effective_kind() {
            Some(Kind::Buckets) => View::Buckets { per: 1, buckets: 1 },
            Some(Kind::Slots) | None => View::ONE,
        }
    }

    /// The holds of a key that state a view, and these views, latest first.
    pub(crate) fn stated_by_holds(&self, key: &Key) -> impl Iterator<Item = (Token, View)> {
        let tokens = self.tree.node(key).into_iter().flat_map(|node| node.holds.iter().rev());
        tokens.filter_map(move |token| {
            let mut items = self.hold(*token)?.items.iter();
            let item = items.find(|item| item.key == *key && item.stated.is_some())?;
            Some((*token, item.stated?))
        })
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

    /// Why a request can never be granted unless someone resizes or resumes a key: the key is
    /// paused, or the request wants more slots at once than the applicable view has. An item that
    /// can share slots always fits.
    pub(crate) fn misfit(&self, contender: &Contender<'_>) -> Option<Refusal> {
        let Contender { asked, lineage, .. } = contender;
        let misfits = asked.items.iter().enumerate().filter_map(|(item, wanted)| {
            let (count, own) = wanted.ask.counted()?;
            let lock = self.tree.lock(&wanted.key);
            let Class { capacity, .. } = lock.class_of(count, own);
            if !lock.settings.paused && count <= capacity {
                return None;
            }
            let shares = self.shareable_hold(lock, &wanted.key, count, lineage);
            // If several causes apply, the smallest is reported.
            shares.is_none().then_some(match lock.settings.paused {
                true => (0, Refusal::Paused { item }),
                false if capacity == 0 => (1, Refusal::TooLarge { item, capacity }),
                false => (2, Refusal::TooLarge { item, capacity }),
            })
        });
        misfits.min_by_key(|(order, _)| *order).map(|(_, misfit)| misfit)
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
