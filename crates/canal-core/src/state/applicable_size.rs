//! The size that applies to a lock, and the requests that can never be granted unless
//! someone resizes or resumes a key.

use std::borrow::Cow;
use std::sync::Arc;

use super::table::Contender;
use crate::index::grant_order::Class;
use crate::{Ask, Key, Kind, Refusal, Request, Table, Token, View};

impl Table {
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
        let is_buckets = self.tree.lock(key).effective_kind() == Some(Kind::Buckets);
        let one = if is_buckets { View::Buckets { per: 1, buckets: 1 } } else { View::ONE };
        self.stated_by_holds(key).next().map_or(one, |(_, latest)| latest)
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
}
