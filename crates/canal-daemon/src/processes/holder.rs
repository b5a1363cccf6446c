//! A process that received a grant.

use serde::{Deserialize, Serialize};

use crate::host::Mark;
use canal_core::{HoldState, OnLost, Owner, ProcessId, Request, Tag};

/// A process that received a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub process: ProcessId,
    #[serde(default)]
    pub on_lost: OnLost,
    /// How far the log was read when the process received the grant, which is in that part of the
    /// history.
    #[serde(default)]
    pub mark: Option<Mark>,
    /// The tag of the request, which identifies the processes that were started under the hold.
    #[serde(default)]
    pub tag: Option<Tag>,
    /// Whether only the table names it, because an earlier daemon of this host took it over, or
    /// ended before it sent the grant. If the hold is lost, the process is ended like any other,
    /// although it may not have received the grant.
    #[serde(default)]
    pub taken_over: bool,
}

impl Holder {
    /// The process that owns a hold. `None` if a lease owns it.
    pub(crate) fn of(hold: &HoldState, mark: Option<Mark>) -> Option<Self> {
        let Owner::Process(process) = hold.asked.owner else { return None };
        let Request { on_lost, tag, .. } = *hold.asked;
        Some(Self { process, on_lost, mark, tag: Some(tag), taken_over: false })
    }
}

/// Identifies the duty to watch the processes of a record. Each membership has a new id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WatchId(pub u64);
