//! The whole table as plain data: what a snapshot in the log holds, and what tests compare.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    FrameId, HostId, Key, LeaseState, Mode, Owner, PastLease, Request, RequestId, Revision, Slots,
    Token, UnixMillis, View,
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
    /// Paused keys, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused: Vec<Key>,
    /// The hosts that take part, by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostState>,
    /// Frames, by id.
    pub frames: Vec<FrameState>,
    /// Holds, by token.
    pub holds: Vec<HoldState>,
    /// Waiting requests, by id.
    pub waiters: Vec<WaiterState>,
    /// How the last leases ended, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past_leases: Vec<PastLease>,
    /// The last era of the engine that the log names; 0 if it names none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub era: u64,
    /// The longest time to live of any host so far, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub longest_ttl_ms: u64,
    /// Grants with smaller tokens that were not told yet must not be: history was lost after them.
    #[serde(default, skip_serializing_if = "is_no_token")]
    pub untold_below: Token,
    /// The recovery that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// A stored view: it applies to every request for slots of its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredView {
    /// Of which key.
    pub key: Key,
    /// The view.
    pub view: View,
}

/// A frame: the requests and holds of one owner.
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
    /// Whether the owner's process has ended. What is left is kept for its descendants.
    #[serde(default)]
    pub ended: bool,
    /// Of a lease: how long it lives, and how often it was renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseState>,
}

/// A granted request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldState {
    /// Its fencing token.
    pub token: Token,
    /// The request that it was granted to.
    pub request: RequestId,
    /// The request itself: it describes the holder, and is queued again if the grant is taken back
    /// before the client was told.
    pub asked: Arc<Request>,
    /// The frame that has it.
    pub frame: FrameId,
    /// When it was granted.
    pub since: UnixMillis,
    /// When it was requested.
    pub asked_at: UnixMillis,
    /// Whether the client has not confirmed the grant yet.
    pub provisional: bool,
    /// Whether the owner's process has ended and only its descendants keep the hold.
    pub orphaned: bool,
    /// How many later requests were granted before it: the request keeps the count if the grant is
    /// taken back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub passed: u32,
    /// What is held, in the order of the request; items given back are missing.
    pub items: Vec<HeldItem>,
}

/// What is held of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldItem {
    /// Of which key.
    pub key: Key,
    /// The mode.
    pub mode: Mode,
    /// The slots; none of a read or write item.
    #[serde(default, skip_serializing_if = "Slots::is_empty")]
    pub slots: Slots,
    /// Whether the slots belong to another hold (re-entrancy).
    pub shared: bool,
    /// The view under which they were granted; none of a read or write item. A hold that inherits
    /// slots that it shared inherits their view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
    /// The view that the holder stated, which later requests without one follow. None of a holder
    /// that stated none, and of a hold that shares the slots of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stated: Option<View>,
}

/// A waiting request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterState {
    /// Its id.
    pub id: RequestId,
    /// The request.
    pub request: Arc<Request>,
    /// The frame to which it belongs.
    pub frame: FrameId,
    /// When it was requested.
    pub since: UnixMillis,
    /// Whether it can be granted now.
    pub status: WaiterStatus,
    /// Whether it precedes all others.
    pub barrier: bool,
    /// How many later requests were granted before it though it competes with them.
    #[serde(default)]
    pub passed: u32,
    /// Whether it came while one of its keys was paused. Whether it can ever fit is decided when
    /// none of its keys is paused any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub size_unchecked: bool,
}

/// Whether a waiter is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaiterStatus {
    /// It precedes others and can be granted.
    Active,
    /// Its process is stopped: it precedes no other and cannot be granted.
    Suspended,
    /// Its daemon restarted: it precedes others and cannot be granted.
    Detached,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_no_token(token: &Token) -> bool {
    *token == Token(0)
}

/// A host that has joined and is not gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostState {
    /// Which incarnation of it.
    pub id: HostId,
    /// The name that people know it by.
    pub label: String,
    /// A description of it, for people.
    pub identity: String,
    /// When it joined.
    pub since: UnixMillis,
}

/// A recovery in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// When it began, by the clock of the host that said so. Shown, never decided upon.
    pub since: UnixMillis,
    /// The hosts that have neither said which tokens they were told nor ended.
    pub unheard: BTreeSet<HostId>,
    /// The entry since which the longest TTL has to pass. `None`: no entry is missing, or it has
    /// passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_from: Option<Revision>,
    /// The token that the next grant would have got when it began: the log gave out smaller ones
    /// only.
    pub next_token: Token,
}

impl Recovery {
    pub(in crate::core) fn is_over(&self) -> bool {
        self.unheard.is_empty() && self.ttl_from.is_none()
    }
}
