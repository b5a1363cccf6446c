//! Finds why a request waits.

use crate::view::Shown;
use crate::view::conflict::{conflict, lineage};
use crate::wording::{self, reason};
use canal_core::{HeldItem, Item, Key, Mode, OwnSlots, Reason, Request, RequestId, Why};

/// The reason why a waiter waits, for users.
#[derive(Debug)]
pub(crate) struct WhyShown {
    /// The key that the waiter waits for.
    pub key: Key,
    /// The mode in which the waiter wants the key.
    pub mode: Mode,
    /// Why it waits, in one clause.
    pub clause: String,
    /// The index of the item among the items of the request.
    pub item: usize,
    /// How holds of others block the item. `None` if the request only has to let others go first.
    pub held: Option<Held>,
    pub is_paused: bool,
    /// Whether the waiter's frame or an enclosing frame holds something. Such holds do not block
    /// it.
    pub nests: bool,
}

/// How holds of others block a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Held {
    /// Its slots are taken.
    Full,
    /// It is held in a conflicting mode.
    Conflicting,
}

impl Held {
    fn by(reason: &Reason) -> Option<Self> {
        match reason {
            Reason::Full { .. } => Some(Self::Full),
            Reason::Conflict { .. } => Some(Self::Conflicting),
            // If the key is paused or the request is larger than the lock, the request would wait
            // even if nothing were held.
            Reason::Paused
            | Reason::LargerThanLock { .. }
            | Reason::Behind { .. }
            | Reason::Suspended
            | Reason::Detached
            | Reason::Recovering => None,
        }
    }
}

impl Shown<'_> {
    /// Why a waiter waits. `None` if it no longer has a reason to.
    pub(crate) fn why(&self, request: RequestId) -> Option<WhyShown> {
        let why = self.table.why(request)?;
        let waiter = self.table.waiter(request)?;
        let mode = waiter.request.items.get(why.item)?.ask.mode();
        let clause = self.clause(&why, mode);
        let nests = !lineage(self.table, waiter.frame).is_empty();
        let (held, item) = (Held::by(&why.reason), why.item);
        let is_paused = why.reason == Reason::Paused;
        Some(WhyShown { key: why.key, mode, clause, item, held, is_paused, nests })
    }

    pub(crate) fn clause(&self, why: &Why, mode: Mode) -> String {
        let (hold, holds) = match why.reason {
            Reason::Conflict { hold, holds } => (hold, holds),
            Reason::Paused => return wording::paused_clause(&why.key),
            _ => return reason(&why.reason),
        };
        let hold = self.table.hold(hold);
        let held = hold.and_then(|hold| held_item(&hold.items, &why.key, mode));
        match (hold, held) {
            (Some(hold), Some(held)) => {
                let (held, owner) = ((&held.key, held.mode), &hold.asked.owner);
                wording::conflict(&why.key, held, owner, self.elsewhere(hold).as_deref(), holds)
            }
            _ => reason(&why.reason),
        }
    }

    /// The conflict that blocks an item, apart from taken slots, in one clause.
    pub(crate) fn conflict(&self, asked: &Request, item: usize) -> Option<String> {
        let Item { key, ask } = asked.items.get(item)?;
        let mode = ask.mode();
        let blocking =
            self.table.blocking_holds(asked, item, OwnSlots::LeftOut, usize::MAX).into_iter();
        let found = blocking.filter_map(|token| {
            let hold = self.table.hold(token)?;
            let item = held_item(&hold.items, key, mode)?;
            (mode == Mode::Write || item.mode == Mode::Write).then_some((hold, item))
        });
        let found: Vec<_> = found.collect();
        let (hold, item) = found.first()?;
        let (held, owner) = ((&item.key, item.mode), &hold.asked.owner);
        let host = self.elsewhere(hold);
        Some(wording::conflict(key, held, owner, host.as_deref(), found.len() as u64))
    }
}

/// The item of a hold that blocks a request for a key. An item of the key itself comes first.
pub(crate) fn held_item<'a>(items: &'a [HeldItem], key: &Key, mode: Mode) -> Option<&'a HeldItem> {
    let in_the_way = || items.iter().filter(|it| conflict((key, mode), (&it.key, it.mode)));
    in_the_way().find(|item| item.key == *key).or_else(|| in_the_way().next())
}
