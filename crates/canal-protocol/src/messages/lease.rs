//! Leases: the secret of a lease, and the messages about leases.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use canal_core::Tag;
use canal_text::duration::stated_ms;
use canal_text::plural;

/// Makes an [`Acquire`](crate::Acquire) request a lease: no process owns the lease, and any client
/// that knows the handle controls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAsked {
    /// The secret for renewing and releasing it; random, made by the client.
    pub handle: Handle,
    /// How many milliseconds it lives without a renewal.
    pub ttl_ms: u64,
}

/// A lease, as reports show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// How many milliseconds it lives without a renewal.
    pub ttl_ms: u64,
    /// How many of them remain; null if it still waits, or has ended.
    pub left_ms: Option<u64>,
    /// When it ends unless it is renewed, RFC 3339 UTC by the machine's clock. `left_ms` decides.
    pub expires: Option<String>,
    /// The number of its renewals.
    pub renewals: u64,
}

/// `Renew`: renews a lease, which lives for its whole TTL from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// The lease's secret.
    pub handle: Handle,
    /// The new note of the lease; empty removes it, absent keeps it.
    pub note: Option<String>,
    /// The new TTL of the lease in milliseconds, from this renewal on; absent keeps the TTL. The
    /// limits are those of a new lease.
    pub ttl_ms: Option<u64>,
}

/// The result of a [`Renew`]; `canal renew --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    /// The keys that it holds.
    pub keys: Vec<String>,
    /// Its fencing token, which never changes.
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
    /// The token of its hold.
    pub token: u64,
    /// The first of the keys that it held.
    pub key: String,
    /// The number of further keys.
    pub more_keys: u64,
    /// How many milliseconds it would have lived without a renewal.
    pub ttl_ms: u64,
}

impl LostLease {
    /// A sentence about the loss: the keys, the reason and, if it is not empty, the time (` 3m12s
    /// ago`). `None` if the reason is unknown.
    pub fn sentence(&self, reason: &str, when: &str) -> Option<String> {
        let keys = match self.more_keys {
            0 => format!("`{}`", self.key),
            more => format!("`{}` and {}", self.key, plural(more, "other key", "other keys")),
        };
        let lease = format!("the lease on {keys} (token {})", self.token);
        Some(match reason {
            "expired" => {
                let ttl = stated_ms(self.ttl_ms);
                format!("{lease} expired{when}: it was not renewed for {ttl}")
            }
            "released" => format!("{lease} was released{when}"),
            "forced" => format!("{lease} was broken by force{when}"),
            "withdrawn" => format!(
                "the daemon took {lease} back{when}: its client ended before it confirmed the grant"
            ),
            _ => return None,
        })
    }
}

/// `EndedLeases`: asks for the recently ended leases that the daemon remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndedLeasesQuery {
    /// Only those whose first key is this one or a key below it.
    pub key: Option<String>,
    /// Only those of the caller.
    pub mine: bool,
    /// Only those of this user.
    pub uid: Option<u32>,
}

/// The reply to an [`EndedLeasesQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLeases {
    /// The latest first.
    pub ended: Vec<EndedLease>,
}

/// A lease that has ended, as reports show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLease {
    /// The time, the token and the keys.
    #[serde(flatten)]
    pub lost: LostLease,
    /// How it ended: `expired`, `released`, `forced` or `withdrawn`.
    pub reason: String,
    /// The user that requested it.
    pub uid: u32,
    /// The command that requested it; null if the caller may not see it.
    pub command: Option<String>,
}

/// The handle of a lease: 128 random bits, made by the client that requests the lease. A process
/// that knows it can renew and release the lease.
///
/// It is never printed by accident: only [`Handle::reveal`] and a message show it in full.
///
/// The client makes it so that a client whose answer was lost can ask again and get the same lease.
/// Any user with the handle may use it, because the steps of a CI run can be different users.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(Tag);

impl Handle {
    /// A handle of these bits.
    pub fn new(bits: u128) -> Self {
        Self(Tag(bits))
    }

    /// Its bits.
    pub fn bits(self) -> u128 {
        self.0.0
    }

    /// The secret as text: 32 hexadecimal digits.
    pub fn reveal(self) -> String {
        self.0.to_string()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle(secret)")
    }
}

impl FromStr for Handle {
    type Err = &'static str;

    /// The error does not repeat the text, which may be a handle with one extra letter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| "a handle is 32 hexadecimal digits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_it_is_shown_and_not_shown_by_accident() {
        let handle = Handle::new(0xabc);
        let text = "00000000000000000000000000000abc";
        assert_eq!(handle.reveal(), text);
        assert_eq!(text.to_uppercase().parse(), Ok(handle));
        assert_eq!(format!("{handle:?}"), "Handle(secret)");
        assert_eq!(serde_json::to_string(&handle).unwrap(), format!("\"{text}\""));
        for wrong in ["", "abc", "0000000000000000000000000000000xyz", &format!("{text}0")] {
            let error = wrong.parse::<Handle>().unwrap_err();
            assert_eq!(error, "a handle is 32 hexadecimal digits");
        }
    }
}
