//! The whole table as plain data: the content of a snapshot in the log, and the form that tests
//! compare.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    BYPASS_MAX_DEFAULT, FrameId, HostId, Key, LeaseState, Mode, Owner, PastLease, Request,
    RequestId, Revision, Settings, Slots, Tag, Token, UnixMillis, View,
};

/// The whole table as plain data. Two tables are identical if and only if their snapshots are
/// equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The values that belong to no key, frame or request.
    pub globals: Globals,
    /// The stored settings, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<Key, Settings>,
    /// Frames, by id.
    pub frames: Vec<FrameState>,
    /// Holds, by token.
    pub holds: Vec<HoldState>,
    /// Waiting requests, by id.
    pub waiters: Vec<WaiterState>,
}

/// The values of the table that belong to no key, frame or request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Globals {
    /// The revision of the last entry applied.
    pub revision: Revision,
    /// The token that the next grant gets.
    pub next_token: Token,
    /// How many times a waiter may be overtaken before it becomes a barrier.
    pub bypass_max: u32,
    /// The hosts that have joined and are not gone. Empty if the log is a local journal.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosts: BTreeMap<HostId, HostState>,
    /// How the last leases ended, the latest last.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub past_leases: VecDeque<PastLease>,
    /// The requests that were superseded last, the latest last.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub superseded: VecDeque<PastRequest>,
    /// The last era of the engine that the log names; 0 if it names none.
    #[serde(default, skip_serializing_if = "super::id::is_zero")]
    pub era: u64,
    /// The longest TTL of any host so far, in milliseconds.
    #[serde(default, skip_serializing_if = "super::id::is_zero")]
    pub longest_ttl_ms: u64,
    /// The log lost entries after the grants with smaller tokens. A client that has not yet learned
    /// of such a grant must not learn of it.
    #[serde(default, skip_serializing_if = "super::id::is_zero")]
    pub untold_below: Token,
    /// The recovery in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
}

impl Default for Globals {
    /// Those of an empty table.
    fn default() -> Self {
        Self {
            revision: Revision(0),
            next_token: Token(1),
            bypass_max: BYPASS_MAX_DEFAULT,
            hosts: BTreeMap::new(),
            past_leases: VecDeque::new(),
            superseded: VecDeque::new(),
            era: 0,
            longest_ttl_ms: 0,
            untold_below: Token(0),
            recovery: None,
        }
    }
}

/// A request that was superseded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastRequest {
    /// Its tag: its client may ask again before it receives the refusal.
    pub tag: Tag,
    /// The request that superseded it.
    pub by: RequestId,
}

/// A frame: the requests and holds of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameState {
    /// Its id.
    pub id: FrameId,
    /// The host whose daemon watches the owner.
    pub host: HostId,
    /// The owner.
    pub owner: Owner,
    /// The enclosing frame.
    pub parent: Option<FrameId>,
    /// The user.
    pub uid: u32,
    /// Whether the owner's process has ended. Its remaining holds are kept for its descendants.
    #[serde(default)]
    pub ended: bool,
    /// For a lease: its TTL and its renewals.
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
    /// The request itself. It describes the holder, and is queued again if the grant is taken back
    /// before it reaches the client.
    pub asked: Arc<Request>,
    /// The frame that has the hold.
    pub frame: FrameId,
    /// When it was granted.
    pub since: UnixMillis,
    /// When it was requested.
    pub asked_at: UnixMillis,
    /// Whether the client has not yet confirmed the grant.
    pub provisional: bool,
    /// Whether the owner's process has ended and only its descendants keep the hold.
    pub orphaned: bool,
    /// How many later requests were granted before it. The request keeps this count if the grant is
    /// taken back.
    #[serde(default, skip_serializing_if = "super::id::is_zero")]
    pub passed: u32,
    /// The items held, in the order of the request, without released ones.
    pub items: Vec<HeldItem>,
}

impl HoldState {
    /// The keys of its items.
    pub fn keys(&self) -> Vec<Key> {
        self.items.iter().map(|item| item.key.clone()).collect()
    }

    /// Whether it is an unconfirmed part of a request over nodes.
    pub fn is_collecting(&self) -> bool {
        self.provisional && self.asked.over_nodes.is_some()
    }

    /// Whether this hold yields to any request.
    pub(crate) fn is_unconfirmed_spare(&self) -> bool {
        self.provisional && self.asked.over_nodes.as_deref().is_some_and(|over| over.spare)
    }
}

/// One key of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldItem {
    /// The key.
    pub key: Key,
    /// The mode.
    pub mode: Mode,
    /// The slots; none for a read or write item.
    #[serde(default, skip_serializing_if = "super::id::is_zero")]
    pub slots: Slots,
    /// Whether the slots belong to another hold (re-entrancy).
    pub shared: bool,
    /// The view under which the slots were granted; `None` for a read or write item. A hold that
    /// inherits slots that it shared also inherits their view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
    /// The view that the holder stated, which later requests without one follow. `None` if the
    /// holder stated none, or shares the slots of another hold.
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
    /// How many later, competing requests were granted before it.
    #[serde(default)]
    pub passed: u32,
    /// Whether it arrived while one of its keys was paused. Whether it can ever fit is decided once
    /// none of its keys is paused.
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

/// A host that has joined and is not gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostState {
    /// The number of its incarnation.
    pub id: HostId,
    /// The name that its users know it by.
    pub label: String,
    /// A description of it, for display.
    pub identity: String,
    /// When it joined.
    pub since: UnixMillis,
}

/// A recovery in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// When it began, by the clock of the host that reported it. Shown, but no decision depends on
    /// it.
    pub since: UnixMillis,
    /// The hosts that have neither reported the tokens that they received nor ended.
    pub unheard: BTreeSet<HostId>,
    /// The entry after which the longest TTL has to pass. `None` if no entry is missing, or if that
    /// time has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_from: Option<Revision>,
    /// The next token at the start of the recovery: the log has issued only smaller ones.
    pub next_token: Token,
}
