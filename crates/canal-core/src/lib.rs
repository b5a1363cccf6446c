//! The lock table: a deterministic state machine over the entries of a log.
//!
//! The table reads no clock, file, socket or random number, and never depends on the iteration
//! order of a hash map. So the same entries give the same table on every host and in every replay.
//! The daemon makes all decisions that depend on time or on processes, and passes them to the table
//! as an [`Entry`].

mod admission;
mod deadlock;
mod index;
mod leader;
mod model;
mod state;
mod transition;
mod why;

pub use admission::node_limits::{are_rivals, differs_in_nodes};
pub use deadlock::{PartialTable, shortest_cycle};
pub use leader::Leadership;
pub use model::{
    Above, Ask, BYPASS_MAX_DEFAULT, By, CONFIRMED_TOKEN_MAX, Change, Command, CycleStep, Diverged,
    ENTRY_VERSION, Entry, FrameId, FrameState, GROUP_BYTES_MAX, Globals, Granted, GrantedItem,
    HeldItem, HoldState, HostId, HostState, Item, KEY_BYTES_MAX, Key, KeyError, Kind, LEASE_MS_MAX,
    LEASE_MS_MIN, LEASE_OVER_NODES_MS_MIN, LeaseEnd, LeaseId, LeaseState, Mode, NODES_MAX, NodeId,
    OnLost, OutOfService, Outcome, OverNodes, Owner, PAST_LEASES_MAX, PastLease, PastRequest,
    ProcessId, RULES_VERSION, Recovery, Refusal, Release, Request, RequestId, Require, Revision,
    RunId, SUPERSEDED_MAX, Setting, Settings, SlotRange, Slots, Snapshot, Supersede, Superseded,
    Tag, Token, UnixMillis, Usage, View, Wait, WaiterState, WaiterStatus, key_room, room_of,
};
pub use state::Table;
pub use why::{Blocker, OwnSlots, Reason, SizeFound, Why};

#[cfg(test)]
mod tests;
