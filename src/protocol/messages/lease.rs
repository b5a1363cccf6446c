//! The messages about leases.

use serde::{Deserialize, Serialize};

use crate::protocol::Handle;

/// Makes an [`Acquire`](crate::protocol::Acquire) one for a lease: no process owns it, and a client
/// that knows the handle controls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAsked {
    /// The secret by which it will be renewed and released; random, made by the client.
    pub handle: Handle,
    /// For how many milliseconds it lives without being renewed.
    pub ttl_ms: u64,
}

/// A lease, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// For how many milliseconds it lives without being renewed.
    pub ttl_ms: u64,
    /// How many of them are left; null if it still waits, or has ended.
    pub left_ms: Option<u64>,
    /// When it ends unless it is renewed, RFC 3339 UTC by the machine's clock. What decides is
    /// `left_ms`.
    pub expires: Option<String>,
    /// How often it was renewed.
    pub renewals: u64,
}

/// `Renew`: renews a lease, which from now lives for its whole TTL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// The lease's secret.
    pub handle: Handle,
    /// The note that the lease has from now on, empty for none; absent leaves it as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// For how many milliseconds the lease lives without being renewed, from this renewal on; absent
    /// leaves it as it is. The limits are those of a new lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// What a [`Renew`] did; `canal renew --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    /// The keys that it holds.
    pub keys: Vec<String>,
    /// Its fencing token, the same as ever.
    pub token: u64,
    /// Its session.
    pub session: String,
    /// The lease.
    pub lease: LeaseInfo,
}

/// A lease that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostLease {
    /// When, RFC 3339 UTC.
    pub at: String,
    /// The token of what it held.
    pub token: u64,
    /// The first of the keys that it held.
    pub key: String,
    /// How many more there were.
    pub more_keys: u64,
    /// For how many milliseconds it would have lived without being renewed.
    pub ttl_ms: u64,
}

/// `EndedLeases`: the leases that ended lately, as far as they are remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLeasesQuery {
    /// Only those whose first key is this one or lies below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Only those of the caller.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mine: bool,
    /// Only those of this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// The reply to an [`EndedLeasesQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLeases {
    /// The last one first.
    pub ended: Vec<EndedLease>,
}

/// A lease that has ended, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EndedLease {
    /// When, why and what.
    #[serde(flatten)]
    pub lost: LostLease,
    /// How: `expired`, `released`, `forced` or `withdrawn`.
    pub reason: String,
    /// The user that asked for it.
    pub uid: u32,
    /// What asked for it; null if that is not the caller's to see.
    pub command: Option<String>,
}
