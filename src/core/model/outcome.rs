//! What the table decided.

use serde::{Deserialize, Serialize};

use super::{FrameId, HostId, Key, Kind, NodeId, RequestId, Revision, Slots, Token, View};

/// One decision. An entry's outcomes stand beside it in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The request waits. A request that is neither queued, granted nor refused is unknown.
    Queued {
        /// Which request.
        request: RequestId,
        /// The frame to which it belongs.
        frame: FrameId,
    },
    /// The request was granted.
    Granted(Granted),
    /// The request ended without a grant.
    Refused {
        /// Which request.
        request: RequestId,
        /// Why.
        why: Refusal,
    },
    /// A waiting request ended by a `Withdraw` or by the end of its frame. (The hold of a granted
    /// request is `Released`.)
    Withdrawn {
        /// Which request.
        request: RequestId,
    },
    /// A hold, or one item of it, was released.
    Released {
        /// The hold's token.
        token: Token,
        /// The frame that had it.
        frame: FrameId,
        /// The request that it was granted to.
        request: RequestId,
        /// The keys released.
        keys: Vec<Key>,
        /// Whether nothing of the hold is left.
        whole: bool,
    },
    /// A grant was taken back before the client was told, and its request waits again.
    Requeued {
        /// Which request.
        request: RequestId,
        /// The token that is lost with the grant.
        token: Token,
    },
    /// A `Release` found nothing to release.
    NotHeld,
    /// The request was overtaken as often as is allowed and now precedes all others.
    Barrier {
        /// Which request.
        request: RequestId,
    },
    /// A `Resize` was refused: the key is in use as another kind of lock.
    ResizeRefused {
        /// The kind that is in use.
        in_use: Kind,
    },
    /// A `Resize` was refused: a request that more than half of some nodes have to grant holds or
    /// waits for the key, and excludes others only while it has one slot.
    ResizeRefusedOverNodes,
    /// A `Resize` was stored.
    Resized {
        /// The view that was stored before.
        before: Option<View>,
    },
    /// A `Pause` was stored.
    PauseStored {
        /// Whether the key was paused before.
        before: bool,
    },
    /// A lease was renewed.
    Renewed {
        /// Its frame.
        frame: FrameId,
        /// How often by now.
        renewal: u64,
    },
    /// A `ConfirmAt` made a hold firm and gave it its token.
    ConfirmedAt {
        /// Which request.
        request: RequestId,
        /// The token that the hold had before.
        was: Token,
        /// The token that it has now.
        token: Token,
    },
    /// A `ConfirmAt` changed nothing.
    NotConfirmed {
        /// A token that the hold could have, with all larger ones; `None` if it has ended.
        least: Option<Token>,
    },
    /// The daemon of another host looks after a lease, because the lease's host is gone.
    LeaseMoved {
        /// Its frame.
        frame: FrameId,
        /// The host that looks after it now, for its whole TTL from now on.
        host: HostId,
    },
    /// A `Renew` found no lease that holds anything: it has ended, or never existed.
    LeaseGone,
    /// Nothing is left of a frame: neither holds nor requests nor child frames.
    FrameGone {
        /// Which frame.
        frame: FrameId,
    },
}

impl Outcome {
    /// Whether it says what became of a request that asks or waits. One entry may say so more than
    /// once: of a request that is queued and then granted or refused, only the last word holds.
    #[must_use]
    pub fn is_word_on(&self, id: RequestId) -> bool {
        match self {
            Self::Queued { request, .. }
            | Self::Refused { request, .. }
            | Self::Withdrawn { request }
            | Self::Requeued { request, .. } => *request == id,
            Self::Granted(granted) => granted.request == id,
            Self::Released { .. }
            | Self::NotHeld
            | Self::Barrier { .. }
            | Self::ResizeRefused { .. }
            | Self::ResizeRefusedOverNodes
            | Self::Resized { .. }
            | Self::PauseStored { .. }
            | Self::Renewed { .. }
            | Self::ConfirmedAt { .. }
            | Self::NotConfirmed { .. }
            | Self::LeaseMoved { .. }
            | Self::LeaseGone
            | Self::FrameGone { .. } => false,
        }
    }
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Which request.
    pub request: RequestId,
    /// The frame that holds it.
    pub frame: FrameId,
    /// The hold's fencing token.
    pub token: Token,
    /// One for each item of the request, in the same order.
    pub items: Vec<GrantedItem>,
    /// Whether it passed waiters that wait for its own session. Such a grant overtakes no waiter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bypassed_blockers: bool,
}

/// What was granted for one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedItem {
    /// How many slots of the key are held after the grant (canal_lock's number). For a read or
    /// write item, how many frames hold the key in this mode.
    pub acquired: u64,
    /// The slot numbers; none for a read or write item.
    #[serde(default, skip_serializing_if = "Slots::is_empty")]
    pub slots: Slots,
    /// Whether the slots are those of an earlier hold of this or an enclosing frame (re-entrant).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The view under which it was granted, or of shared slots the view of their holder; none of a
    /// read or write item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
}

/// One step of a deadlock: a request that waits, and the frame that it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleStep {
    /// The request that waits.
    pub request: RequestId,
    /// The frame that waits.
    pub frame: FrameId,
    /// The item that is blocked.
    pub item: usize,
    /// The key of that item.
    pub key: Key,
    /// What it waits for.
    pub by: By,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// A hold, and the frame that has it.
    Hold(Token, FrameId),
    /// A request that precedes it, and that request's frame.
    Waiter(RequestId, FrameId),
}

impl By {
    /// The frame of the hold or request.
    #[must_use]
    pub fn frame(self) -> FrameId {
        match self {
            Self::Hold(_, frame) | Self::Waiter(_, frame) => frame,
        }
    }
}

/// Why a request was refused. `item` is the index of the item at fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// It would have to wait, and may not.
    Full {
        /// The first item that is not free.
        item: usize,
    },
    /// Only this frame and the frames that enclose it hold what it waits for.
    OwnDeadlock {
        /// Which item.
        item: usize,
    },
    /// It was chosen to break a deadlock.
    Deadlock {
        /// The whole cycle in the order of the waits, beginning with the refused request. The last
        /// step waits for a frame of the first step's session.
        cycle: Vec<CycleStep>,
    },
    /// The key is in use as another kind of lock.
    Kind {
        /// Which item.
        item: usize,
        /// The kind in use.
        in_use: Kind,
    },
    /// The key is paused, and the request may not wait.
    Paused {
        /// Which item.
        item: usize,
    },
    /// It would have to wait, and as many requests wait for a key already as it accepts.
    MaxWaiting {
        /// Which item.
        item: usize,
        /// How many wait.
        waiting: u64,
    },
    /// More slots at once than the view that counts has.
    TooLarge {
        /// Which item.
        item: usize,
        /// The capacity of the view; 0 of a view without buckets.
        capacity: u64,
    },
    /// More than half of the nodes would not exclude others: the lock has more than one slot, or is
    /// to be written.
    RequireTooLarge {
        /// Which item.
        item: usize,
    },
    /// A key is held or waited for over another list of nodes, and enough nodes of the two lists need
    /// not have one in common.
    OtherNodes {
        /// Which item.
        item: usize,
        /// That list.
        theirs: Vec<NodeId>,
    },
    /// A kind of item that this version does not know how to grant.
    Unsupported {
        /// Which item.
        item: usize,
    },
    /// The request breaks a rule of its own: no items, a key twice, a count of 0, `per` 0.
    Invalid {
        /// Which item, if it is one.
        item: usize,
    },
    /// The tag names another request already, or the handle another lease.
    Duplicate,
    /// The table grants nothing before its [recovery](super::Recovery) is over. Request it again
    /// then.
    Recovering,
}

/// A recorded entry cannot have had the recorded outcomes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the outcomes recorded at revision {revision} do not fit the table: {what}")]
pub struct Diverged {
    /// Where in the log.
    pub revision: Revision,
    /// What does not fit.
    pub what: String,
}

/// Why an outcome cannot be carried out.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(in crate::core) struct InvalidOutcome(pub(in crate::core) String);

impl From<String> for InvalidOutcome {
    fn from(why: String) -> Self {
        Self(why)
    }
}
