//! The keys that a request was granted, and those that it holds now.

use std::collections::BTreeSet;

use crate::view::Shown;
use crate::wording::{Text, pid_of};
use canal_core::{Granted, GrantedItem, HeldItem, HoldState, Item, Mode, Request, Slots, View};
use canal_protocol::{Grant, GrantedKey, OwnerInfo, SlotInfo};

impl<'a> Shown<'a> {
    /// A grant that was just decided.
    pub(crate) fn grant(&self, granted: &Granted) -> Option<Grant<Text<'a>>> {
        let hold = self.table.hold(granted.token)?;
        if hold.items.len() < hold.asked.items.len() {
            // Part of the hold was released before the client received the grant.
            return Some(self.held(hold));
        }
        Some(self.grant_of(hold, granted_keys(&hold.asked, granted)))
    }

    /// The keys that a request holds, for a client that asks again. `acquired` is the number held
    /// now, because the number right after the grant is no longer known.
    pub(crate) fn held(&self, hold: &'a HoldState) -> Grant<Text<'a>> {
        let keys = hold.items.iter().map(|item| self.held_key(item)).collect();
        self.grant_of(hold, keys)
    }

    fn grant_of(&self, hold: &'a HoldState, keys: Vec<GrantedKey<Text<'a>>>) -> Grant<Text<'a>> {
        Grant {
            keys,
            token: hold.token.0,
            owner: OwnerInfo {
                pid: pid_of(&hold.asked.owner),
                command: Text::Itself(&hold.asked.command.0),
            },
            session: Text::Session(self.table.session(hold.frame)),
            frame: Text::Frame(hold.frame),
            children_fd: None,
            offers_fd: None,
            returns_fd: None,
            jobserver_path: None,
            lease: self.lease(hold),
            handle: None,
            notes: Vec::new(),
            deadline_fd: None,
            liveness_fd: None,
        }
    }

    fn held_key(&self, item: &'a HeldItem) -> GrantedKey<Text<'a>> {
        GrantedKey {
            key: Text::Itself(item.key.as_str()),
            acquired: self.acquired(item),
            slots: slots_shown(&item.slots, item.view),
            mode: item.mode,
        }
    }

    fn acquired(&self, item: &HeldItem) -> u64 {
        if item.mode == Mode::Counted {
            return self.table.held_of(&item.key);
        }
        let holds = self.table.holders(&item.key).filter_map(|token| self.table.hold(token));
        let same = holds.filter(|hold| {
            hold.items.iter().any(|held| held.key == item.key && held.mode == item.mode)
        });
        same.map(|hold| hold.frame).collect::<BTreeSet<_>>().len() as u64
    }
}

/// The keys that a request was granted, or would be.
pub(crate) fn granted_keys<'a>(asked: &'a Request, granted: &Granted) -> Vec<GrantedKey<Text<'a>>> {
    asked
        .items
        .iter()
        .zip(&granted.items)
        .map(|(item, granted)| granted_key(item, granted))
        .collect()
}

fn granted_key<'a>(item: &'a Item, granted: &GrantedItem) -> GrantedKey<Text<'a>> {
    GrantedKey {
        key: Text::Itself(item.key.as_str()),
        acquired: granted.acquired,
        slots: slots_shown(&granted.slots, granted.view),
        mode: item.ask.mode(),
    }
}

fn slots_shown(slots: &Slots, view: Option<View>) -> Vec<SlotInfo> {
    let bucket = |slot| view.and_then(|view| view.bucket(slot));
    slots.iter().map(|slot| SlotInfo { slot, bucket: bucket(slot) }).collect()
}
