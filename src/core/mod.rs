//! The lock table: a deterministic state machine over the entries of a log.
//!
//! Nothing here reads a clock, a file, a socket or a random number, and nothing depends on the
//! iteration order of a hash map: the same entries give the same table, on every host and at every
//! replay. What depends on time or on the outside is decided elsewhere and arrives as an [`Entry`].

mod admit;
mod apply;
mod ask;
mod bars;
mod deadlock;
mod decide;
mod enact;
mod entry;
mod frame;
mod free;
mod hold;
mod hosts;
mod id;
mod key;
mod lane;
mod lease;
mod lock;
mod node;
mod outcome;
mod owners;
mod past_own;
mod process;
mod queue;
mod reach;
mod recovery;
mod report;
mod rules;
mod settle;
mod slots;
mod snapshot;
mod table;
mod text;
mod thought;
mod tree;
mod turn;
mod usage;
mod view;
mod wait;

pub use entry::{
    Ask, Change, Command, ENTRY_VERSION, Entry, Item, Mode, OnLost, Owner, Release, Request, Wait,
    Withdrawal,
};
pub use hosts::HostState;
pub use id::{FrameId, HostId, LeaseId, RequestId, Revision, Tag, Token, UnixMillis};
pub use key::{KEY_BYTES_MAX, Key, KeyError};
pub use lease::{LeaseEnd, LeaseState, PAST_LEASES_MAX, PastLease};
pub use outcome::{By, CycleStep, Granted, GrantedItem, Outcome, Refusal};
pub use process::ProcessId;
pub use recovery::Recovery;
pub use report::{Blocker, KeyReport, Reason, Why};
pub use rules::Rules;
pub use slots::{SlotRange, Slots};
pub use snapshot::{
    FrameState, HeldItem, HoldState, Snapshot, StoredView, WaiterState, WaiterStatus,
};
pub use table::{BYPASS_MAX_DEFAULT, Diverged, Table};
pub use usage::{Usage, key_room, room_of};
pub use view::{Kind, View};

#[cfg(test)]
mod tests;
