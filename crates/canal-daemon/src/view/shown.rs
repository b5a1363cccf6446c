//! The table, restricted to the data that one client may see, and why requests wait.

use std::collections::BTreeSet;

use crate::processes::descendants::Children;
use crate::processes::owners::Owners;
use crate::store::ledger::Ledger;
use crate::waiters::leases::Leases;
use crate::wording::{self, reason};
use canal_core::{
    FrameId, HeldItem, HoldState, HostId, Item, Key, Mode, OwnSlots, Reason, Request, RequestId,
    Table, Why,
};
use canal_history::Summary;

/// The most keys below a key that are searched for holds that block a request for the key.
const KEYS_LOOKED_AT_MAX: usize = 1000;

/// The table, restricted to the data that one client may see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    pub table: &'a Table,
    /// When leases expire.
    pub leases: &'a Leases,
    /// Frames whose process may or may not live.
    pub unverified: &'a BTreeSet<FrameId>,
    /// The user that gets the reply.
    pub viewer: u32,
    /// The host whose processes can be looked up.
    pub here: HostId,
    /// The FIFOs of holds that last while descendants live, for reports.
    pub children: Option<&'a Children>,
    /// How long keys were held recently, for reports; `None` if it is unknown.
    pub summary: Option<&'a Summary>,
}

impl<'a> Shown<'a> {
    /// The table, restricted to the data that a user may see.
    pub(crate) fn to(
        viewer: u32,
        ledger: &'a Ledger,
        leases: &'a Leases,
        owners: &'a Owners,
    ) -> Self {
        let (table, here) = (&ledger.table, ledger.host);
        Self {
            table,
            leases,
            unverified: &owners.unverified,
            viewer,
            here,
            children: None,
            summary: None,
        }
    }

    /// The name of the session that a frame belongs to.
    pub(crate) fn session(&self, frame: FrameId) -> String {
        format!("s{}", self.table.session(frame))
    }

    /// The name of the host that a frame is on, if several hosts share the table.
    pub(crate) fn label_of(&self, frame: FrameId) -> Option<String> {
        let host = self.table.frame(frame)?.host;
        self.table.host(host).map(|host| host.label.clone())
    }

    /// Like [`Self::label_of`], but only for hosts other than this one.
    fn elsewhere(&self, hold: &HoldState) -> Option<String> {
        self.label_of(hold.frame).filter(|_| hold.asked.host != self.here)
    }

    pub(crate) fn command(&self, uid: u32, command: &str) -> Option<String> {
        self.sees(uid).then(|| command.to_owned())
    }

    /// Whether the viewer may see the commands of a user.
    pub(crate) fn sees(&self, uid: u32) -> bool {
        self.viewer == uid || self.viewer == 0
    }
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
    /// `None` if the request only has to let others go first.
    pub(crate) fn by(reason: &Reason) -> Option<Self> {
        match reason {
            Reason::Full { .. } => Some(Self::Full),
            Reason::Conflict { .. } => Some(Self::Conflicting),
            // If the key is paused or the request is larger than the lock, the request would wait
            // even if nothing were held.
            _ => None,
        }
    }
}

impl Shown<'_> {
    /// Why a waiter waits, in which mode it wants the key, and the reason in one clause. `None` if
    /// it no longer has a reason to wait.
    pub(crate) fn why(&self, request: RequestId) -> Option<(Why, Mode, String)> {
        let why = self.table.why(request)?;
        let mode = self.table.waiter(request)?.request.items.get(why.item)?.ask.mode();
        let clause = self.clause(&why, mode);
        Some((why, mode, clause))
    }

    /// Whether a frame or one that encloses it holds something. Such holds do not block its requests.
    pub(crate) fn nests(&self, frame: FrameId) -> bool {
        let state = |frame| self.table.frame(frame);
        let mut around = std::iter::successors(state(frame), |inner| state(inner.parent?));
        around.any(|frame| self.table.holds_in(frame.id).next().is_some())
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
                let (owner, host) = (&hold.asked.owner, self.elsewhere(hold));
                wording::conflict(&why.key, held, owner, host.as_deref(), holds)
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
            let held = held_item(&hold.items, key, mode)?;
            (mode == Mode::Write || held.1 == Mode::Write).then_some((hold, held))
        });
        let found: Vec<_> = found.collect();
        let (hold, held) = found.first()?;
        let (owner, host) = (&hold.asked.owner, self.elsewhere(hold));
        Some(wording::conflict(key, *held, owner, host.as_deref(), found.len() as u64))
    }
}

/// The key and the mode of the item of a hold that blocks a request for a key.
pub(crate) fn held_item<'a>(
    items: &'a [HeldItem],
    key: &Key,
    mode: Mode,
) -> Option<(&'a Key, Mode)> {
    competing(items.iter().map(|item| (&item.key, item.mode)), key, mode)
}

/// The first of these items that a request for a key conflicts with. An item of the key itself
/// comes before all others.
pub(crate) fn competing<'a>(
    items: impl Iterator<Item = (&'a Key, Mode)> + Clone,
    key: &Key,
    mode: Mode,
) -> Option<(&'a Key, Mode)> {
    let mut competing = items.filter(|item| conflict((key, mode), *item));
    competing.clone().find(|(other, _)| *other == key).or_else(|| competing.next())
}

/// A hold that blocks a request, and the blocking item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockingHold<'a> {
    pub hold: &'a HoldState,
    pub item: &'a HeldItem,
}

/// Whether two items exclude each other: both are slots of the same key, or one of them is a write
/// and one key covers the other.
pub(crate) fn conflict(one: (&Key, Mode), other: (&Key, Mode)) -> bool {
    let (key, mode) = one;
    let (other, other_mode) = other;
    if mode == Mode::Write || other_mode == Mode::Write {
        return key.covers(other) || other.covers(key);
    }
    mode == Mode::Counted && other_mode == Mode::Counted && key == other
}

/// The holds that conflict with an item, whether or not the item fits in addition to them. Holds of
/// the key itself come first, then holds of the keys above it, then holds of the keys below it.
///
/// At most `each` holds are returned for each key, and at most [`KEYS_LOOKED_AT_MAX`] keys below
/// the key are examined.
pub(crate) fn blocking_holds<'a>(
    table: &'a Table,
    key: &'a Key,
    mode: Mode,
    each: usize,
) -> impl Iterator<Item = BlockingHold<'a>> {
    let below = table.keys(Some(key)).filter(move |other| *other != key).take(KEYS_LOOKED_AT_MAX);
    let related = std::iter::once(key.clone()).chain(above(key)).chain(below.cloned());
    related.flat_map(move |other| {
        let holds = table.holders(&other).filter_map(|token| table.hold(token));
        let in_the_way = holds.filter_map(|hold| {
            let mut items = hold.items.iter();
            let item = items
                .find(|item| item.key == other && conflict((key, mode), (&item.key, item.mode)))?;
            Some(BlockingHold { hold, item })
        });
        in_the_way.take(each).collect::<Vec<_>>()
    })
}

/// The keys that cover a key, without the key itself. The nearest key comes first.
fn above(key: &Key) -> impl Iterator<Item = Key> {
    let ends = key.as_str().rmatch_indices('/').map(|(at, _)| at);
    ends.filter_map(|end| Key::new(key.as_str().get(..end)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn a_write_keeps_out_all_above_and_below_and_slots_only_those_of_their_key() {
        use Mode::{Counted, Read, Write};
        let conflicts = |(one, mode): (&str, Mode), (other, as_): (&str, Mode)| {
            let forth = conflict((&key(one), mode), (&key(other), as_));
            assert_eq!(forth, conflict((&key(other), as_), (&key(one), mode)));
            forth
        };
        assert!(conflicts(("a", Write), ("a/b", Read)));
        assert!(conflicts(("a/b", Write), ("a", Counted)));
        assert!(conflicts(("a", Write), ("a", Write)));
        assert!(conflicts(("a", Counted), ("a", Counted)));
        assert!(!conflicts(("a", Counted), ("a/b", Counted)));
        assert!(!conflicts(("a", Read), ("a/b", Counted)));
        assert!(!conflicts(("a/b", Write), ("a/c", Write)));
        assert!(!conflicts(("a", Write), ("ab", Read)));
    }

    #[test]
    fn the_keys_above_are_all_prefixes_of_whole_components() {
        let above = |text| above(&key(text)).map(|key| key.to_string()).collect::<Vec<_>>();
        assert_eq!(above("a/bc/d"), ["a/bc", "a"]);
        assert!(above("abc").is_empty());
    }
}
