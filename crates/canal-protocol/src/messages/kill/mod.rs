//! Signals to the processes of holders and waiters.

use serde::{Deserialize, Serialize};

use crate::messages::wait_graph::is_none_left;
use crate::{PartyInfo, Tag};

/// `WouldKill`: returns the holds and waiting requests whose processes a [`Kill`] may signal.
/// Signals nothing. Exactly one of `key`, `pid`, `session`, `token`, `request` and `superseded_by`
/// selects them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldKill {
    /// Those of exactly this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Those of this process of this host, including the waiting ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Those of this session, including the waiting ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The hold with this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// This waiting request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<u64>,
    /// The holds that the request with this tag supersedes. There may be none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<Tag>,
    /// With `key`: also the requests that wait for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waiters: bool,
}

/// The reply to a [`WouldKill`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillTargets {
    /// The holds, oldest first, then the waiting requests in the order in which they are granted.
    pub targets: Vec<KillTarget>,
    /// The number omitted, if there are very many.
    #[serde(default, skip_serializing_if = "is_none_left")]
    pub left_out: u64,
    /// For a `token` or `request` whose process the caller can end: the index of its pidfd among
    /// the descriptors of this message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_fd: Option<u32>,
}

/// A hold or a waiting request, and its process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillTarget {
    /// The token of a hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The number of a waiting request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<u64>,
    /// The keys that it holds or waits for.
    pub keys: Vec<String>,
    /// Its process.
    pub party: PartyInfo,
    /// When its hold or wait began, RFC 3339 UTC.
    pub since: String,
    /// Its host; null on one machine.
    pub host: Option<String>,
    /// The working folder of its process, if known and visible to the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Its note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Why the caller cannot end it; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The action to take instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// `Kill`: sends a signal to the process of a hold or of a waiting request, as [`WouldKill`] named
/// it. Exactly one of `token` and `request` selects it. If it no longer holds or waits, signals
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// The token of a hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The number of a waiting request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<u64>,
    /// The number of the signal.
    pub signal: i32,
}

/// The result of a [`Kill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Killed {
    /// The process that was signalled; 0 if it has no pid where the daemon runs.
    pub pid: u32,
}
