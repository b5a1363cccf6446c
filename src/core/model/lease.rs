//! Leases: what lives by renewal, and how one ended.

use serde::{Deserialize, Serialize};

use super::{Change, Command, Key, LeaseId, Release, Token, UnixMillis};

/// The shortest TTL of a lease, in milliseconds. A client starts a process for each renewal, and that is in time
/// even on a busy machine.
pub const LEASE_MS_MIN: u64 = 1000;

/// The longest TTL of a lease in milliseconds, 30 days. A lease that is needed for longer is renewed. A forgotten
/// lease does not block others for ever.
pub const LEASE_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1000;

/// The shortest TTL of a lease over nodes, in milliseconds: a shorter one leaves no time to reach a
/// node again.
pub const LEASE_OVER_NODES_MS_MIN: u64 = 10_000;

/// How many ended leases are remembered. A client that renews an ended lease usually does so within
/// about a TTL.
pub const PAST_LEASES_MAX: usize = 256;

/// What makes a frame a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseState {
    /// For how many milliseconds it lives without being renewed.
    pub ttl_ms: u64,
    /// How often it was renewed.
    #[serde(default)]
    pub renewals: u64,
    /// When it was renewed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed: Option<UnixMillis>,
}

impl LeaseState {
    pub(in crate::core) fn new(ttl_ms: u64) -> Self {
        Self { ttl_ms, renewals: 0, renewed: None }
    }
}

/// A lease that held something and ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLease {
    /// Which.
    pub lease: LeaseId,
    /// When.
    pub at: UnixMillis,
    /// Why.
    pub why: LeaseEnd,
    /// The token of what it held.
    pub token: Token,
    /// The first of the keys that it held.
    pub key: Key,
    /// How many more there were.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_keys: usize,
    /// For how long it would have lived without being renewed, in milliseconds.
    pub ttl_ms: u64,
    /// The user that asked for it.
    #[serde(default)]
    pub uid: u32,
    /// What asked for it.
    #[serde(default)]
    pub command: Command,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseEnd {
    /// It was not renewed within its TTL.
    Expired,
    /// It was released by its handle.
    Released,
    /// A client broke it by its token.
    Forced,
    /// Its client was gone before it confirmed the grant.
    Withdrawn,
}

impl LeaseEnd {
    pub(in crate::core) fn by(change: &Change) -> Self {
        match change {
            Change::Expire { .. } => Self::Expired,
            Change::Release(Release::Hold { forced: true, .. }) => Self::Forced,
            Change::Release(_) => Self::Released,
            _ => Self::Withdrawn,
        }
    }
}
