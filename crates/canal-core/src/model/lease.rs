//! Leases as plain data, and the bounds of their TTL.

use serde::{Deserialize, Serialize};

use super::{Change, Command, Key, LeaseId, Release, Token, UnixMillis};

/// The shortest TTL of a lease, in milliseconds. A client starts a process for each renewal, and
/// even a busy machine can do that in time.
pub const LEASE_MS_MIN: u64 = 1000;

/// The longest TTL of a lease in milliseconds, 30 days. A client that needs a lease for longer
/// renews it. A forgotten lease does not block others forever.
pub const LEASE_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1000;

/// The shortest TTL of a lease over nodes, in milliseconds. A shorter one leaves no time to
/// reconnect to a node.
pub const LEASE_OVER_NODES_MS_MIN: u64 = 10_000;

/// The state that makes a frame a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseState {
    /// How long it lives after a renewal, in milliseconds.
    pub ttl_ms: u64,
    /// The number of renewals.
    #[serde(default)]
    pub renewals: u64,
    /// The time of the last renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed: Option<UnixMillis>,
}

/// A lease that held something and ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLease {
    /// The lease.
    pub lease: LeaseId,
    /// When it ended.
    pub at: UnixMillis,
    /// How it ended.
    pub why: LeaseEnd,
    /// The token of its hold.
    pub token: Token,
    /// The first of the keys that it held.
    pub key: Key,
    /// The number of further keys.
    #[serde(default, skip_serializing_if = "super::id::is_zero")]
    pub more_keys: usize,
    /// Its TTL, in milliseconds.
    pub ttl_ms: u64,
    /// The user that requested it.
    #[serde(default)]
    pub uid: u32,
    /// The command that requested it.
    #[serde(default)]
    pub command: Command,
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseEnd {
    /// It was not renewed within its TTL.
    Expired,
    /// It was released by its handle.
    Released,
    /// A client forced its release by its token.
    Forced,
    /// Its client disappeared before it confirmed the grant.
    Withdrawn,
}

impl LeaseEnd {
    pub(crate) fn by(change: &Change) -> Self {
        match change {
            Change::Expire { .. } => Self::Expired,
            Change::Release(Release::Hold { forced: true, .. }) => Self::Forced,
            Change::Release(_) => Self::Released,
            _ => Self::Withdrawn,
        }
    }
}
