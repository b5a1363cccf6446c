//! The plain values of the table: keys, ids, requests, entries and outcomes.
//!
//! Invariant: nothing here knows the table. Every value can be made, read and written without one.

mod entry;
mod id;
mod key;
mod lease;
mod outcome;
mod process;
mod rules;
mod slots;
mod snapshot;
mod usage;
mod view;

pub use entry::over_nodes::{Above, CONFIRMED_TOKEN_MAX, NODES_MAX, OverNodes, Require};
pub use entry::supersede::{GROUP_BYTES_MAX, SUPERSEDED_MAX, Supersede, Superseded};
pub use entry::{
    Ask, Change, Command, ENTRY_VERSION, Entry, Item, Mode, OnLost, Owner, Release, Request, Wait,
    Withdrawal,
};
pub use id::{
    FrameId, HostId, LeaseId, NodeId, RequestId, Revision, RunId, Tag, Token, UnixMillis,
};
pub use key::{KEY_BYTES_MAX, Key, KeyError};
pub use lease::{
    LEASE_MS_MAX, LEASE_MS_MIN, LEASE_OVER_NODES_MS_MIN, LeaseEnd, LeaseState, PAST_LEASES_MAX,
    PastLease,
};
pub(crate) use outcome::InvalidOutcome;
pub use outcome::{By, CycleStep, Diverged, Granted, GrantedItem, Outcome, Refusal};
pub use process::ProcessId;
pub use rules::{BYPASS_MAX_DEFAULT, RULES_VERSION};
pub use slots::{SlotRange, Slots};
pub use snapshot::{
    FrameState, HeldItem, HoldState, HostState, PastRequest, Recovery, Snapshot, StoredView,
    StoredWithout, WaiterState, WaiterStatus,
};
pub use usage::{Usage, key_room, room_of};
pub use view::{Kind, View};
