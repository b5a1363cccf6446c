//! The plain values of the table: keys, ids, requests, entries and outcomes.
//!
//! Invariant: nothing here knows the table. Every value can be made, read and written without one.

mod entry;
mod id;
mod key;
mod outcome;
mod request;
mod settings;
mod slots;
mod snapshot;

pub use entry::{BYPASS_MAX_DEFAULT, Change, ENTRY_VERSION, Entry, RULES_VERSION, Release};
pub use id::{
    FrameId, HostId, LeaseId, NodeId, ProcessId, RequestId, Revision, RunId, Tag, Token, UnixMillis,
};
pub use key::{KEY_BYTES_MAX, Key, KeyError};
pub use outcome::{By, CycleStep, Diverged, Granted, GrantedItem, Outcome, Refusal};
pub use request::{
    Above, Ask, CONFIRMED_TOKEN_MAX, Command, GROUP_BYTES_MAX, Item, Mode, NODES_MAX, OnLost,
    OverNodes, Owner, Request, Require, SUPERSEDED_MAX, Supersede, Superseded, Usage, Wait,
    key_room, room_of,
};
pub use settings::{OutOfService, Setting, Settings};
pub use slots::{Kind, SlotRange, Slots, View};
pub use snapshot::{
    FrameState, Globals, HeldItem, HoldState, HostState, LEASE_MS_MAX, LEASE_MS_MIN,
    LEASE_OVER_NODES_MS_MIN, LeaseEnd, LeaseState, PAST_LEASES_MAX, PastLease, PastRequest,
    Recovery, Snapshot, WaiterState, WaiterStatus,
};
