//! Holders and waiters, as reported by [`Client`](crate::Client).
//!
//! `canal status --json` prints the same values; canal-json(7) describes each of them. Times are
//! RFC 3339 UTC. Later versions add fields and variants, so match these structs with `..`.

pub use canal_protocol::{
    BlockerInfo, ChildrenInfo, CycleStepInfo, DaemonInfo, EngineInfo, HolderInfo, HostInfo,
    KeyInfo, Kind, LeaseInfo, PartyInfo, Progress, RecoveryInfo, Status, WaitInfo, WaiterInfo,
    Waits,
};
