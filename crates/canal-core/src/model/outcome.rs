//! The decisions of the table.

use serde::{Deserialize, Serialize};

use super::{FrameId, HostId, Key, Kind, NodeId, RequestId, Revision, Slots, Token, View};

/// One decision. The log stores the outcomes of an entry next to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The request waits. A request that is neither queued, granted nor refused is unknown.
    Queued {
        /// The request.
        request: RequestId,
        /// The frame to which it belongs.
        frame: FrameId,
    },
    /// The request was granted.
    Granted(Granted),
    /// The request ended without a grant.
    Refused {
        /// The request.
        request: RequestId,
        /// The reason.
        why: Refusal,
    },
    /// A waiting request ended by a `Withdraw` or by the end of its frame. (The hold of a granted
    /// request is `Released`.)
    Withdrawn {
        /// The request.
        request: RequestId,
    },
    /// A hold, or one item of it, was released.
    Released {
        /// The hold's token.
        token: Token,
        /// The frame that had the hold.
        frame: FrameId,
        /// The request to which it was granted.
        request: RequestId,
        /// The keys released.
        keys: Vec<Key>,
        /// Whether the whole hold has ended.
        whole: bool,
    },
    /// A grant was taken back before it reached the client, and its request waits again.
    Requeued {
        /// The request.
        request: RequestId,
        /// The token that is lost with the grant.
        token: Token,
    },
    /// A `Release` found nothing to release.
    NotHeld,
    /// The request was overtaken as often as is allowed and now precedes all others.
    Barrier {
        /// The request.
        request: RequestId,
    },
    /// A view was not stored: the key is in use as another kind of lock.
    ResizeRefused {
        /// The kind that is in use.
        in_use: Kind,
    },
    /// A view was not stored: a request for a majority of nodes holds or waits for the key, and
    /// excludes others only while the key has one slot.
    ResizeRefusedOverNodes,
    /// A setting was stored.
    Stored {
        /// The view that was stored before.
        before: Option<View>,
    },
    /// A `Prioritize` changed the priority of a waiting request.
    Prioritized {
        /// The request.
        request: RequestId,
        /// The priority that it had before.
        before: i32,
    },
    /// A lease was renewed.
    Renewed {
        /// The lease's frame.
        frame: FrameId,
        /// The number of renewals so far.
        renewal: u64,
    },
    /// A `ConfirmAt` made a hold firm and gave it its token.
    ConfirmedAt {
        /// The request.
        request: RequestId,
        /// The token that the hold had before.
        was: Token,
        /// The token that it has now.
        token: Token,
    },
    /// A `ConfirmAt` changed nothing.
    NotConfirmed {
        /// The hold could take this token or any larger one. `None` if the hold has ended.
        least: Option<Token>,
    },
    /// The daemon of another host now watches over a lease, because the lease's host is gone.
    LeaseMoved {
        /// The lease's frame.
        frame: FrameId,
        /// The host that now watches over it, for its whole TTL from now on.
        host: HostId,
    },
    /// A `Renew` found no lease that holds anything: it has ended, or never existed.
    LeaseGone,
    /// A frame is empty: it has no holds, requests or child frames.
    FrameGone {
        /// The frame.
        frame: FrameId,
    },
}

impl Outcome {
    /// Whether it reports the state of a new or waiting request. One entry may do so more than
    /// once: if a request is queued and then granted or refused, only the last outcome counts.
    pub fn is_word_on(&self, id: RequestId) -> bool {
        match self {
            Self::Queued { request, .. }
            | Self::Refused { request, .. }
            | Self::Withdrawn { request }
            | Self::Requeued { request, .. } => *request == id,
            Self::Granted(granted) => granted.request == id,
            _ => false,
        }
    }
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The request.
    pub request: RequestId,
    /// The frame that holds it.
    pub frame: FrameId,
    /// The hold's fencing token.
    pub token: Token,
    /// One for each item of the request, in the same order.
    pub items: Vec<GrantedItem>,
    /// Whether it overtook waiters that wait for its own session. Such a grant does not count as
    /// overtaking them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bypassed_blockers: bool,
}

/// The grant of one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedItem {
    /// The number of held slots of the key after the grant (canal_lock's number). For a read or
    /// write item, the number of frames that hold the key in this mode.
    pub acquired: u64,
    /// The slot numbers; none for a read or write item.
    #[serde(default, skip_serializing_if = "super::id::is_zero")]
    pub slots: Slots,
    /// Whether the slots are those of an earlier hold of this or an enclosing frame (re-entrant).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The view under which it was granted, or for shared slots the view of their holder. `None`
    /// for a read or write item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
}

/// One edge of the wait-for graph: an item of a waiting request, and a hold or request that blocks
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitFor {
    /// The request that waits.
    pub request: RequestId,
    /// The frame that waits.
    pub frame: FrameId,
    /// The item that is blocked.
    pub item: usize,
    /// The key of that item.
    pub key: Key,
    /// The hold or request that it waits for.
    pub by: By,
}

/// The cause of a wait.
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
    /// The request would have to wait, but may not.
    Full {
        /// The first item that is not free.
        item: usize,
    },
    /// Only this frame and the frames that enclose it hold what the request waits for.
    OwnDeadlock {
        /// The item at fault.
        item: usize,
    },
    /// The request was chosen to break a deadlock.
    Deadlock {
        /// The whole cycle in the order of the waits, beginning with the refused request. The last
        /// step waits for a frame of the first step's session.
        cycle: Vec<WaitFor>,
    },
    /// The key is in use as another kind of lock.
    Kind {
        /// The item at fault.
        item: usize,
        /// The kind in use.
        in_use: Kind,
    },
    /// The key is paused, and the request may not wait.
    Paused {
        /// The item at fault.
        item: usize,
    },
    /// The request would have to wait, and the queue already has as many waiters as the request
    /// accepts.
    MaxWaiting {
        /// The item at fault.
        item: usize,
        /// The number of waiters.
        waiting: u64,
    },
    /// A newer request of the same user supersedes it.
    Superseded {
        /// The newer request.
        by: RequestId,
    },
    /// The request supersedes a hold that has no process on its own host that could be ended.
    CannotEnd {
        /// The hold.
        token: Token,
    },
    /// The request asks for more slots at once than the applicable view has.
    TooLarge {
        /// The item at fault.
        item: usize,
        /// The capacity of the view; 0 for a view without buckets.
        capacity: u64,
    },
    /// A majority of the nodes would not exclude others: the lock has more than one slot, or the
    /// item is a write.
    RequireTooLarge {
        /// The item at fault.
        item: usize,
    },
    /// A key is held or waited for over another list of nodes, and a sufficient set of one list may
    /// share no node with a sufficient set of the other.
    OtherNodes {
        /// The item at fault.
        item: usize,
        /// The other list.
        theirs: Vec<NodeId>,
    },
    /// The request itself breaks a rule: it has no items, a key twice, a count of 0 or a `per` of
    /// 0.
    Invalid {
        /// The item at fault, if a single item is.
        item: usize,
    },
    /// The tag already names another request, or the handle another lease.
    Duplicate,
    /// The table grants nothing until its [recovery](super::Recovery) is over. Request it again
    /// then.
    Recovering,
}

/// The recorded outcomes of an entry are impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the outcomes recorded at revision {revision} do not fit the table: {what}")]
pub struct Diverged {
    /// The position in the log.
    pub revision: Revision,
    /// The contradiction.
    pub what: String,
}
