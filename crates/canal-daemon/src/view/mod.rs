//! The table in the form that clients see.
//!
//! Invariant: only the user of a process and root can see its command and its working directory.

pub(super) mod conflict;
pub(super) mod grant;
pub(super) mod holder;
pub(super) mod key;
pub(super) mod leadership;
pub(super) mod selection;
pub(super) mod size_notes;
pub(super) mod why;

use std::collections::BTreeSet;

use crate::processes::children::Children;
use crate::processes::owners::Owners;
use crate::store::ledger::Ledger;
use crate::waiters::leases::Leases;
use canal_core::{FrameId, HoldState, HostId, Table};
use canal_history::Summary;

pub(crate) use crate::view::why::{Held, held_item};

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
        self.label(frame).map(str::to_owned)
    }

    fn label(&self, frame: FrameId) -> Option<&'a str> {
        let host = self.table.frame(frame)?.host;
        self.table.host(host).map(|host| host.label.as_str())
    }

    /// Like [`Self::label_of`], but only for hosts other than this one.
    fn elsewhere(&self, hold: &HoldState) -> Option<String> {
        self.label_of(hold.frame).filter(|_| hold.asked.host != self.here)
    }

    pub(crate) fn command(&self, uid: u32, command: &str) -> Option<String> {
        self.sees(uid).then(|| command.to_owned())
    }

    /// Whether the viewer may see the commands of a user.
    fn sees(&self, uid: u32) -> bool {
        self.viewer == uid || self.viewer == 0
    }
}
