//! The table as clients see it.
//!
//! Invariant: the command of a process is shown to its user and to root only.

mod grant;
mod holder;
mod key;
mod why;

use std::collections::BTreeSet;

use super::leases::Leases;
use super::ledger::Ledger;
use super::owners::Owners;
use crate::core::{FrameId, HoldState, HostId, Owner, Table, UnixMillis};

pub(super) use why::{Held, held_item};

/// The table, as one client may see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    pub(super) table: &'a Table,
    /// When leases end.
    pub(super) leases: &'a Leases,
    /// Frames of which it is not known whether their process still lives.
    pub(super) unverified: &'a BTreeSet<FrameId>,
    /// The user who looks.
    pub(super) viewer: u32,
    /// The host whose processes can be looked at.
    pub(super) here: HostId,
}

impl<'a> Shown<'a> {
    /// The table, as a user may see it.
    pub(super) fn to(
        viewer: u32,
        ledger: &'a Ledger,
        leases: &'a Leases,
        owners: &'a Owners,
    ) -> Self {
        let (table, here) = (&ledger.table, ledger.host);
        Self { table, leases, unverified: &owners.unverified, viewer, here }
    }

    /// The name of the session that a frame belongs to.
    pub(super) fn session(&self, frame: FrameId) -> String {
        format!("s{}", self.table.session(frame))
    }

    /// The name of the host that a frame is on, where there are several.
    pub(super) fn label_of(&self, frame: FrameId) -> Option<String> {
        self.label(frame).map(str::to_owned)
    }

    fn label(&self, frame: FrameId) -> Option<&'a str> {
        let host = self.table.frame(frame)?.host;
        self.table.host(host).map(|host| host.label.as_str())
    }

    /// As [`Self::label_of`], of hosts other than this one.
    fn elsewhere(&self, hold: &HoldState) -> Option<String> {
        self.label_of(hold.frame).filter(|_| hold.asked.host != self.here)
    }

    pub(super) fn command(&self, uid: u32, command: &str) -> Option<String> {
        self.sees(uid).then(|| command.to_owned())
    }

    /// Whether the commands of a user are the viewer's to see.
    fn sees(&self, uid: u32) -> bool {
        self.viewer == uid || self.viewer == 0
    }
}

/// The number of an owner's process; 0 if it has none here.
pub(super) fn pid_of(owner: &Owner) -> u32 {
    match owner {
        Owner::Process(process) => process.pid,
        Owner::Lease(_) => 0,
    }
}

/// A time as RFC 3339, UTC.
pub(super) fn time(at: UnixMillis) -> String {
    let at = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(at).unwrap_or(jiff::Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(time(UnixMillis(0)), "1970-01-01T00:00:00Z");
        assert_eq!(time(UnixMillis(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
        assert!(time(UnixMillis(u64::MAX)).starts_with("9999-12-30"));
    }
}
