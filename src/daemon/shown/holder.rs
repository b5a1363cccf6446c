//! Who holds a key.

use super::super::conflict::obstacles;
use super::super::text::Text;
use super::{Shown, pid_of, time};
use crate::core::{FrameId, HoldState, Key, Mode, UnixMillis};
use crate::protocol::{HOLDERS_SHOWN_MAX, HolderShown, LeaseShown};
use crate::sys::clock;
use crate::sys::process::{RunState, run_state};

/// Whether the process of a holder is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// It is, in /proc.
    Closely,
    /// It is not.
    Briefly,
}

impl<'a> Shown<'a> {
    /// A holder; its slots are those of `key`.
    pub(super) fn holder(&self, hold: &HoldState, key: Option<&Key>, looks: Looks) -> HolderShown {
        let state = match looks {
            Looks::Closely if hold.asked.ttl_ms.is_some() => None,
            Looks::Closely => self.state(hold, pid_of(&hold.asked.owner)).map(str::to_owned),
            Looks::Briefly => None,
        };
        let holder = self.holder_briefly(hold, key).map_texts(|text| text.to_string());
        HolderShown { state, ..holder }
    }

    /// A holder as it is told to the one who gives back, without a look at its process.
    pub(in super::super) fn holder_briefly<'h>(
        &self,
        hold: &'h HoldState,
        key: Option<&Key>,
    ) -> HolderShown<Text<'h>>
    where
        'a: 'h,
    {
        let uid = hold.asked.uid;
        let item = key.and_then(|key| hold.items.iter().find(|item| item.key == *key));
        HolderShown {
            pid: pid_of(&hold.asked.owner),
            uid,
            command: self.sees(uid).then_some(Text::Itself(&hold.asked.command.0)),
            since: Text::Time(hold.since),
            token: hold.token.0,
            mode: item.map(|item| item.mode),
            slots: item.map(|item| item.slots.to_vec()).unwrap_or_default(),
            key: None,
            session: Text::Session(self.table.session(hold.frame)),
            host: self.label(hold.frame).map(Text::Itself),
            state: None,
            lease: self.lease(hold),
        }
    }

    /// How long the lease lives that has a hold, if one has it.
    pub(in super::super) fn lease(&self, hold: &HoldState) -> Option<LeaseShown> {
        let ttl_ms = hold.asked.ttl_ms?;
        let left_ms = self.leases.left_ms(hold.frame);
        let end = |left| time(UnixMillis(clock::unix_ms().saturating_add(left)));
        let state = self.table.frame(hold.frame).and_then(|frame| frame.lease);
        let renewals = state.map_or(0, |lease| lease.renewals);
        Some(LeaseShown { ttl_ms, left_ms, expires: left_ms.map(end), renewals })
    }

    fn state(&self, hold: &HoldState, pid: u32) -> Option<&'static str> {
        if hold.orphaned {
            return Some("children");
        }
        if self.unverified.contains(&hold.frame) {
            return Some("unverified");
        }
        if hold.asked.host != self.here {
            return None;
        }
        match run_state(pid) {
            RunState::Running => Some("running"),
            RunState::Stopped => Some("stopped"),
            RunState::Frozen => Some("frozen"),
            RunState::Exiting | RunState::Gone => None,
        }
    }

    /// Those whose holds are in the way of an item, the longest first, a few of them. `kin` are the
    /// frames whose holds are not in its way.
    pub(in super::super) fn holders(
        &self,
        key: &Key,
        mode: Mode,
        kin: &[FrameId],
    ) -> Vec<HolderShown> {
        let mut found: Vec<_> = obstacles(self.table, key, mode, kin, HOLDERS_SHOWN_MAX).collect();
        found.sort_by_key(|obstacle| obstacle.hold.token);
        found.dedup_by_key(|obstacle| obstacle.hold.token);
        found.truncate(HOLDERS_SHOWN_MAX);
        let shown = found.into_iter().map(|obstacle| {
            let held = &obstacle.item.key;
            let holder = self.holder(obstacle.hold, Some(held), Looks::Closely);
            HolderShown { key: (held != key).then(|| held.to_string()), ..holder }
        });
        shown.collect()
    }
}
