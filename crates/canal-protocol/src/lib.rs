//! The messages between clients and the daemon.
//!
//! The convention is varlink's: JSON objects, each ended by a NUL byte, over a Unix stream socket.
//! `interface/io.canal.Lock.varlink` describes the interface, `interface/io.canal.Nodes.varlink`
//! that of requests over nodes; the types in `messages` are their Rust form.
//!
//! Invariant: new fields are optional and unknown ones are ignored, so that an old client can talk
//! to a new daemon and vice versa.

pub mod frame;
mod interface;
pub mod message_size;
mod messages;
pub mod node_address;
pub mod place;
pub mod service;
pub mod user_namespace;

pub use canal_core::{
    GROUP_BYTES_MAX, Kind, Mode, NodeId, OnLost, Require, RunId, Superseded, Tag,
};
pub use interface::{INTERFACE, INTERFACE_DESCRIPTION, NODES_DESCRIPTION, NODES_INTERFACE};
pub use messages::acquire::{
    Abandon, Acquire, Confirm, Grant, GrantedKey, HOLDERS_SHOWN_MAX, OwnerInfo, Progress, SizeNote,
    SlotInfo, WireItem, WouldAcquire, WouldGrant,
};
pub use messages::daemon::configuration::{
    Configuration, ConfigurationQuery, Reload, Reloaded, SettingChange, SettingInfo, SettingSource,
};
pub use messages::daemon::{Metrics, MetricsQuery, Stop, Stopping};
pub use messages::deadline_page::{DeadlinePageFound, DeadlinePageQuery, Wrapper};
pub use messages::envelope::{Call, Reply};
pub use messages::error::{ErrorName, Failure, OWNER_GONE};
pub use messages::handle::Handle;
pub use messages::history::{
    HistoryBin, HistoryClient, HistoryCount, HistoryItem, HistoryKeyUse, HistoryLengths,
    HistoryPage, HistoryQuery, HistoryRecord, HistorySlots, HistorySlotsRow, HistoryStats,
    HistoryStatsQuery, HistoryStep,
};
pub use messages::kill::{Kill, KillTarget, KillTargets, Killed, WouldKill};
pub use messages::leader::{Leader, LeaderQuery};
pub use messages::lease::{
    EndedLease, EndedLeases, EndedLeasesQuery, LeaseAsked, LeaseInfo, LostLease, Renew, Renewed,
};
pub use messages::nodes::node::{Identify, NodeIdentity, NodesRefusal, Restrict};
pub use messages::nodes::part::{
    Collect, ConfirmAt, ConfirmedAt, REPORTED_NODES_MAX, Report, Reported,
};
pub use messages::nodes::waits_near::{
    FrameFound, FrameOfNode, NodeAt, PartFound, READ_NODES_MAX, WAITS_NEAR_NAMES_MAX, WaitsFound,
    WaitsNear,
};
pub use messages::prioritize::{Prioritize, Prioritized};
pub use messages::release::{Release, Released, ReleasedHold};
pub use messages::resize::{Resize, Resized};
pub use messages::status::{
    ChildrenInfo, DaemonInfo, EngineInfo, EstimateInfo, HolderInfo, HostInfo, KeyInfo,
    OverNodesInfo, RecoveryInfo, Status, StatusQuery, WaiterInfo,
};
pub use messages::wait_graph::{
    BLOCKERS_SHOWN_MAX, BlockerInfo, CycleStepInfo, GraphQuery, PartyInfo, WaitInfo, Waits,
    WhyQuery,
};

/// The most bytes of a note.
pub const NOTE_BYTES_MAX: usize = 512;

/// The environment variable of a command over an engine, and of its descendants: the tags of its
/// holds, separated by blanks. With it, the daemon finds the remaining processes of a command whose
/// hold is lost.
pub const HOLD_VARIABLE: &str = "CANAL_HOLD";

/// Keeps the tests apart from the user's environment and processes.
#[cfg(test)]
#[path = "../../../tests/fixtures/isolation.rs"]
mod isolation;
