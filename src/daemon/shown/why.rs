//! What keeps a request waiting.

use std::collections::BTreeSet;

use super::super::conflict::{conflict, kin, obstacles};
use super::super::words;
use super::Shown;
use crate::core::{FrameId, HeldItem, Key, Mode, Reason, RequestId, Why};
use crate::protocol::{HolderShown, Progress};

/// What keeps a waiter waiting, for people.
#[derive(Debug)]
pub(in super::super) struct WhyShown {
    /// The key that does.
    pub(in super::super) key: Key,
    /// In which way it wants the key.
    pub(in super::super) mode: Mode,
    /// Why, in one clause.
    pub(in super::super) clause: String,
    /// The frames that hold something and are not in its way.
    pub(in super::super) kin: Vec<FrameId>,
}

impl Shown<'_> {
    /// What keeps a waiter waiting. `None` if nothing does any more.
    pub(in super::super) fn why(&self, request: RequestId) -> Option<WhyShown> {
        let why = self.table.why(request)?;
        let waiter = self.table.waiter(request)?;
        let mode = waiter.request.items.get(why.item)?.ask.mode();
        let clause = self.clause(&why, mode);
        Some(WhyShown { key: why.key, mode, clause, kin: kin(self.table, waiter.frame) })
    }

    pub(super) fn clause(&self, why: &Why, mode: Mode) -> String {
        let Reason::Conflict { hold, holds } = why.reason else {
            return words::reason(&why.reason);
        };
        let hold = self.table.hold(hold);
        let held = hold.and_then(|hold| held_item(&hold.items, &why.key, mode));
        match (hold, held) {
            (Some(hold), Some(held)) => {
                let (held, owner) = ((&held.key, held.mode), &hold.asked.owner);
                words::conflict(&why.key, held, owner, self.elsewhere(hold).as_deref(), holds)
            }
            _ => words::reason(&why.reason),
        }
    }

    /// What is in the way of an item other than by its slots, in one clause.
    pub(in super::super) fn conflict(
        &self,
        key: &Key,
        mode: Mode,
        kin: &[FrameId],
    ) -> Option<String> {
        let mut found = obstacles(self.table, key, mode, kin, usize::MAX)
            .filter(|obstacle| mode == Mode::Write || obstacle.item.mode == Mode::Write);
        let first = found.next()?;
        let holds = found.map(|obstacle| obstacle.hold.token).collect::<BTreeSet<_>>();
        let others = holds.iter().filter(|token| **token != first.hold.token).count() as u64;
        let (held, owner) = ((&first.item.key, first.item.mode), &first.hold.asked.owner);
        let host = self.elsewhere(first.hold);
        Some(words::conflict(key, held, owner, host.as_deref(), others + 1))
    }

    /// A word to a waiter. `position` is its place among the `waiting` of the key that keeps it.
    pub(in super::super) fn progress(
        &self,
        key: &Key,
        reason: String,
        position: usize,
        waiting: usize,
        holders: Vec<HolderShown>,
    ) -> Progress {
        Progress {
            key: key.to_string(),
            position: position as u64,
            waiting: waiting as u64,
            reason,
            holders,
        }
    }
}

/// Which of a hold's items is in the way of what is asked of a key; that of the key itself first.
pub(in super::super) fn held_item<'a>(
    items: &'a [HeldItem],
    key: &Key,
    mode: Mode,
) -> Option<&'a HeldItem> {
    let in_the_way = || items.iter().filter(|it| conflict((key, mode), (&it.key, it.mode)));
    in_the_way().find(|item| item.key == *key).or_else(|| in_the_way().next())
}
