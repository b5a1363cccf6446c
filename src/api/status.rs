//! Holders and waiters, as [`Client`](crate::Client) reports it.
//!
//! These are the values that `canal status --json` prints; canal-json(7) describes each of them.
//! Times are RFC 3339 UTC. Later versions add fields and variants.

pub use crate::protocol::{
    BlockerInfo, ChildrenInfo, CycleStepInfo, DaemonInfo, EngineInfo, HolderInfo, HostInfo,
    KeyInfo, Kind, LeaseInfo, PartyInfo, Progress, RecoveryInfo, Status, WaitInfo, WaiterInfo,
    Waits,
};
