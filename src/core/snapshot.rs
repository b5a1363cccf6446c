//! The whole table as plain data: what a snapshot in the log holds, and what tests compare.

use serde::{Deserialize, Serialize};

use super::{
    Command, FrameId, HostId, Key, Owner, Request, RequestId, Revision, Slots, Token, UnixMillis,
    View,
};

/// The whole table as plain data. Two tables are identical iff their snapshots are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The revision of the last entry applied.
    pub revision: Revision,
    /// The token that the next grant gets.
    pub next_token: Token,
    /// Overtakings allowed before a waiter becomes a barrier.
    pub bypass_max: u32,
    /// Stored views, by key.
    pub views: Vec<StoredView>,
    /// Frames, by id.
    pub frames: Vec<FrameState>,
    /// Holds, by token.
    pub holds: Vec<HoldState>,
    /// Waiting requests, by id.
    pub waiters: Vec<WaiterState>,
}

/// A view that callers follow who state none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredView {
    /// Of which key.
    pub key: Key,
    /// The view.
    pub view: View,
}

/// What owns requests and holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameState {
    /// Its id.
    pub id: FrameId,
    /// Which host's daemon watches the owner.
    pub host: HostId,
    /// The owner.
    pub owner: Owner,
    /// The enclosing frame.
    pub parent: Option<FrameId>,
    /// The user.
    pub uid: u32,
}

/// A granted request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldState {
    /// Its fencing token.
    pub token: Token,
    /// The request that it was granted to.
    pub request: RequestId,
    /// The request itself, kept whole until it is certain that it was told.
    pub asked: Request,
    /// The frame that has it.
    pub frame: FrameId,
    /// When it was granted.
    pub since: UnixMillis,
    /// When it was asked for.
    pub asked_at: UnixMillis,
    /// Whether its asker has still to confirm.
    pub provisional: bool,
    /// What to show of the holder.
    pub command: Command,
    /// Whether the owner's process is gone and only its descendants keep the hold.
    pub orphaned: bool,
    /// What is held, in the order of the request; items given back are missing.
    pub items: Vec<HeldItem>,
}

/// What is held of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldItem {
    /// Of which key.
    pub key: Key,
    /// The slots.
    pub slots: Slots,
    /// Whether they are those of another hold (re-entrant).
    pub shared: bool,
    /// The view under which they were granted.
    pub view: View,
}

/// A waiting request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterState {
    /// Its id.
    pub id: RequestId,
    /// The request.
    pub request: Request,
    /// The frame to which it belongs.
    pub frame: FrameId,
    /// When it was asked for.
    pub since: UnixMillis,
    /// Whether it can be granted now.
    pub status: WaiterStatus,
    /// Whether it is served before all others.
    pub barrier: bool,
    /// How often it was overtaken, for each item.
    pub overtaken: Vec<u32>,
}

/// Whether a waiter takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaiterStatus {
    /// It waits, bars and can be granted.
    Active,
    /// Its process is stopped: it bars nobody and cannot be granted.
    Suspended,
    /// Its daemon started anew: it bars and cannot be granted.
    Detached,
}
