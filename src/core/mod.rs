//! The lock table: a deterministic state machine over the entries of a log.
//!
//! Nothing here reads a clock, a file, a socket or a random number, and nothing depends on the
//! iteration order of a hash map: the same entries give the same table, on every host and at every
//! replay. What depends on time or on the outside is decided elsewhere and arrives as an [`Entry`].

mod admission;
mod deadlock;
mod index;
mod model;
mod report;
mod state;
mod transition;

pub use model::{
    Ask, By, Change, Command, CycleStep, ENTRY_VERSION, Entry, FrameId, Granted, GrantedItem,
    HostId, Item, KEY_BYTES_MAX, Key, KeyError, Kind, LeaseId, Mode, OnLost, Outcome, Owner,
    ProcessId, Refusal, Release, Request, RequestId, Revision, Rules, SlotRange, Slots, Tag, Token,
    UnixMillis, Usage, View, Wait, Withdrawal, key_room, room_of,
};
pub use report::{Blocker, KeyReport, Reason, Why};
pub use state::{
    BYPASS_MAX_DEFAULT, Diverged, FrameState, HeldItem, HoldState, HostState, LeaseEnd, LeaseState,
    PAST_LEASES_MAX, PastLease, Recovery, Snapshot, StoredView, Table, WaiterState, WaiterStatus,
};

#[cfg(test)]
mod tests;
