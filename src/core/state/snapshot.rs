//! The whole table as plain data: what a snapshot in the log holds, and what tests compare.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::core::index::lock::Lock;
use crate::core::{
    Diverged, FrameId, HostId, HostState, Key, LeaseState, Mode, Owner, PastLease, Recovery,
    Request, RequestId, Revision, Rules, Slots, Table, Token, UnixMillis, View,
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
    /// The own views of locks in use, where they are not the stored ones.
    #[serde(default)]
    pub in_use: Vec<StoredView>,
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
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
    /// Whether the owner's process is gone; what is left is kept for its descendants.
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
    /// The request itself: what to show of the holder, and what is asked again if the grant is
    /// taken back before it was told.
    pub asked: Arc<Request>,
    /// The frame that has it.
    pub frame: FrameId,
    /// When it was granted.
    pub since: UnixMillis,
    /// When it was asked for.
    pub asked_at: UnixMillis,
    /// Whether its asker has still to confirm.
    pub provisional: bool,
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
    /// In which way.
    pub mode: Mode,
    /// The slots; none of a read or write item.
    #[serde(default, skip_serializing_if = "Slots::is_empty")]
    pub slots: Slots,
    /// Whether they are those of another hold (re-entrant).
    pub shared: bool,
    /// The view under which they were granted; none of a read or write item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
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
    /// When it was asked for.
    pub since: UnixMillis,
    /// Whether it can be granted now.
    pub status: WaiterStatus,
    /// Whether it is served before all others.
    pub barrier: bool,
    /// How often it was overtaken, for each item. Filled in by [`crate::core::Table::snapshot`] only.
    pub overtaken: Vec<u32>,
    /// How often it was overtaken by requests whose reads or writes conflict with its items.
    #[serde(default)]
    pub passed: u32,
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_no_token(token: &Token) -> bool {
    *token == Token(0)
}

impl Table {
    /// The table as plain data.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let locks = || self.tree.locks();
        let stored = |(key, lock): (&Key, &Lock)| {
            lock.stored.map(|view| StoredView { key: key.clone(), view })
        };
        let in_use = |(key, lock): (&Key, &Lock)| {
            let own = lock.own.filter(|own| Some(*own) != lock.stored)?;
            Some(StoredView { key: key.clone(), view: own })
        };
        let waiter = |waiter: &WaiterState| WaiterState {
            overtaken: self.overtaken(waiter),
            ..waiter.clone()
        };
        Snapshot {
            revision: self.revision,
            next_token: self.next_token,
            bypass_max: self.bypass_max,
            views: locks().filter_map(stored).collect(),
            in_use: locks().filter_map(in_use).collect(),
            hosts: self.hosts().cloned().collect(),
            frames: self.frames().cloned().collect(),
            holds: self.holds().cloned().collect(),
            waiters: self.waiters().map(waiter).collect(),
            past_leases: self.past_leases.iter().cloned().collect(),
            era: self.era,
            longest_ttl_ms: self.longest_ttl_ms,
            untold_below: self.untold_below,
            recovery: self.recovery.clone(),
        }
    }

    /// The table that a snapshot describes.
    ///
    /// # Errors
    /// The snapshot contradicts itself: a slot twice, a frame that is missing.
    pub fn restore(snapshot: &Snapshot, rules: Rules) -> Result<Self, Diverged> {
        let revision = snapshot.revision;
        let mut table = Self::new(rules);
        table.revision = revision;
        table.next_token = snapshot.next_token;
        table.bypass_max = snapshot.bypass_max;
        table.past_leases = snapshot.past_leases.iter().cloned().collect();
        table.hosts = snapshot.hosts.iter().map(|host| (host.id, host.clone())).collect();
        table.era = snapshot.era;
        table.longest_ttl_ms = snapshot.longest_ttl_ms;
        table.untold_below = snapshot.untold_below;
        table.recovery = snapshot.recovery.clone();
        table.refill(snapshot).map_err(|what| Diverged { revision, what })?;
        Ok(table)
    }

    fn refill(&mut self, snapshot: &Snapshot) -> Result<(), String> {
        for StoredView { key, view } in &snapshot.views {
            self.tree.change_lock(key, |lock| lock.stored = Some(*view));
        }
        for frame in &snapshot.frames {
            self.add_frame(frame.clone());
        }
        for hold in &snapshot.holds {
            self.take_slots(hold.token, &hold.items, |lock, at| {
                if let Some(view) = hold.items[at].view {
                    lock.use_as(view);
                }
            })?;
            self.add_hold(hold.clone())?;
        }
        for waiter in &snapshot.waiters {
            self.use_locks(&waiter.request);
        }
        // Before anyone queues: who is parked depends on it.
        for StoredView { key, view } in &snapshot.in_use {
            if let Some(lock) = self.tree.lock_mut(key) {
                lock.own = Some(*view);
            }
        }
        snapshot.waiters.iter().try_for_each(|waiter| self.add_waiter(waiter.clone()))
    }
}
