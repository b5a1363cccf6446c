//! A process that was told that it holds something.

use serde::{Deserialize, Serialize};

use crate::core::{HoldState, OnLost, Owner, ProcessId, Request, Tag};
use crate::host::Mark;

/// One who was told of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) process: ProcessId,
    #[serde(default)]
    pub(crate) on_lost: OnLost,
    /// How far the log was read when it was told: the grant is in that part of its history.
    #[serde(default)]
    pub(crate) mark: Option<Mark>,
    /// The tag of the request: what was started under the hold is known by it.
    #[serde(default)]
    pub(crate) tag: Option<Tag>,
}

impl Holder {
    /// The process of a hold, unless that is a lease's.
    pub(crate) fn of(hold: &HoldState, mark: Option<Mark>) -> Option<Self> {
        let Owner::Process(process) = hold.asked.owner else { return None };
        let Request { on_lost, tag, .. } = *hold.asked;
        Some(Self { process, on_lost, mark, tag: Some(tag) })
    }
}

/// Names the duty of watching over the processes of a record: it is new with each membership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WatchId(pub(crate) u64);
