//! The table, restricted to the data that one client may see, and why requests wait.

use std::collections::BTreeSet;

use crate::lease_deadlines::Leases;
use crate::processes::find_descendants::Children;
use crate::processes::watch_owners::Owners;
use crate::store::table_and_log::Ledger;
use crate::wording::{self, reason};
use canal_core::{
    FrameId, HeldItem, HoldState, HostId, Item, Key, Mode, OwnSlots, Reason, Request, RequestId,
    Table, Why, are_rivals,
};
use canal_history::Summary;

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
    pub(crate) fn to(uid: u32, ledger: &'a Ledger, leases: &'a Leases, owners: &'a Owners) -> Self {
        Self {
            table: &ledger.table,
            leases,
            unverified: &owners.unverified,
            viewer: uid,
            here: ledger.host,
            children: None,
            summary: None,
        }
    }

    /// The name of the session that a frame belongs to.
    pub(crate) fn session(&self, frame: FrameId) -> String {
        frame_name("s", self.table.session(frame))
    }

    /// The name of the host that a frame is on, if several hosts share the table.
    pub(crate) fn label_of(&self, frame: FrameId) -> Option<String> {
        let host = self.table.frame(frame)?.host;
        self.table.host(host).map(|host| host.label.clone())
    }

    pub(crate) fn command(&self, uid: u32, command: &str) -> Option<String> {
        self.sees(uid).then(|| command.to_owned())
    }

    /// Whether the viewer may see the commands of a user.
    pub(crate) fn sees(&self, uid: u32) -> bool {
        self.viewer == uid || self.viewer == 0
    }

    /// Why a waiter waits, in which mode it wants the key, and the reason in one clause. `None` if
    /// it no longer has a reason to wait.
    pub(crate) fn why(&self, request: RequestId) -> Option<(Why, Mode, String)> {
        let why = self.table.why(request)?;
        let asked = &self.table.waiter(request)?.request;
        let (mode, clause) = (mode_of(asked, why.item)?, self.clause(&why, asked));
        Some((why, mode, clause))
    }

    /// Whether a frame or one that encloses it holds something. Such holds do not block its
    /// requests.
    pub(crate) fn nests(&self, frame: FrameId) -> bool {
        let state = |frame| self.table.frame(frame);
        let mut around = std::iter::successors(state(frame), |inner| state(inner.parent?));
        around.any(|frame| self.table.holds_in(frame.id).next().is_some())
    }

    /// Why a request waits, in one clause.
    pub(crate) fn clause(&self, why: &Why, asked: &Request) -> String {
        let (hold, holds) = match why.reason {
            Reason::Conflict { hold, holds } => (hold, holds),
            Reason::Paused => return wording::paused_clause(&why.key),
            _ => return reason(&why.reason),
        };
        let hold = self.table.hold(hold).zip(mode_of(asked, why.item));
        hold.and_then(|(hold, mode)| self.conflict_with(hold, &why.key, mode, holds))
            .unwrap_or_else(|| reason(&why.reason))
    }

    /// The conflict that blocks an item, apart from taken slots, in one clause.
    pub(crate) fn conflict(&self, asked: &Request, item: usize) -> Option<String> {
        let Item { key, ask } = asked.items.get(item)?;
        let mode = ask.mode();
        let all = self.table.blocking_holds(asked, item, OwnSlots::LeftOut, usize::MAX).into_iter();
        let holds = all.filter_map(|token| self.table.hold(token)).filter(|hold| {
            let held = held_item(&hold.items, key, mode);
            held.is_some_and(|(_, held)| mode == Mode::Write || held == Mode::Write)
        });
        let holds: Vec<&HoldState> = holds.collect();
        self.conflict_with(holds.first()?, key, mode, holds.len() as u64)
    }

    /// A hold that blocks a request for a key, and the number of all such holds, in one clause.
    fn conflict_with(&self, hold: &HoldState, key: &Key, mode: Mode, holds: u64) -> Option<String> {
        let held = held_item(&hold.items, key, mode)?;
        let host = self.label_of(hold.frame).filter(|_| hold.asked.host != self.here);
        Some(wording::conflict(key, held, &hold.asked.owner, host.as_deref(), holds))
    }
}

/// The name of a frame or a session.
pub(crate) fn frame_name(kind: &str, frame: FrameId) -> String {
    // Several times faster than `format!`, and every grant has two.
    [kind, &frame.0.to_string()].concat()
}

/// Whether holds of others block a request. Otherwise it only has to let others go first, or would
/// wait even if nothing were held: the key is paused, or the request is larger than the lock.
pub(crate) fn is_held(reason: &Reason) -> bool {
    matches!(reason, Reason::Full { .. } | Reason::Conflict { .. })
}

/// The mode of an item of a request.
pub(crate) fn mode_of(asked: &Request, item: usize) -> Option<Mode> {
    Some(asked.items.get(item)?.ask.mode())
}

/// The key and the mode of the item of a hold that blocks a request for a key.
pub(crate) fn held_item<'a>(of: &'a [HeldItem], key: &Key, mode: Mode) -> Option<(&'a Key, Mode)> {
    competing(of.iter().map(|item| (&item.key, item.mode)), key, mode)
}

/// The first of these items that a request for a key conflicts with. An item of the key itself
/// comes before all others.
pub(crate) fn competing<'a>(
    items: impl Iterator<Item = (&'a Key, Mode)> + Clone,
    key: &Key,
    mode: Mode,
) -> Option<(&'a Key, Mode)> {
    let mut competing = items.filter(|item| are_rivals((key, mode), *item));
    competing.clone().find(|(other, _)| *other == key).or_else(|| competing.next())
}
