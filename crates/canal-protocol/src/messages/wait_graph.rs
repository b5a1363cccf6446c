//! Waiters and their blockers, as reports show them.

use serde::{Deserialize, Serialize};

use crate::{Mode, RunId};

/// `Why`: follows the waits of one process or session to the end of the chain, and the waits of the
/// requests that wait for it. Exactly one of the two fields is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyQuery {
    /// A process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// A session, as status shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// `Graph`: asks for all waiters and their blockers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphQuery {}

/// Waiters and their blockers. The reply to [`WhyQuery`] has them in the order of the chain, the
/// requested one first, and is empty if it waits for nothing. Also the reply to [`GraphQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// One for each waiting request.
    pub waits: Vec<WaitInfo>,
    /// The number omitted.
    #[serde(default, skip_serializing_if = "is_none_left")]
    pub left_out: u64,
    /// In the reply to [`WhyQuery`]: the requests that wait for the one in the query, directly
    /// first, then those that wait for these, and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiters: Vec<WaitInfo>,
    /// The number of waiting requests that were not examined, if there are very many.
    #[serde(default, skip_serializing_if = "is_none_left")]
    pub waiters_left_out: u64,
}

pub(crate) fn is_none_left(n: &u64) -> bool {
    *n == 0
}

/// A waiting request and its blockers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitInfo {
    /// The waiter.
    pub waiter: PartyInfo,
    /// The key that blocks it.
    pub key: String,
    /// Its mode at the key.
    pub mode: Mode,
    /// When its wait began, RFC 3339 UTC.
    pub since: String,
    /// Why it waits, in one clause.
    pub reason: String,
    /// Its blockers; at most [`BLOCKERS_SHOWN_MAX`].
    pub blockers: Vec<BlockerInfo>,
    /// The number omitted.
    #[serde(default, skip_serializing_if = "is_none_left")]
    pub blockers_left_out: u64,
}

/// The most blockers that a [`WaitInfo`] names.
pub const BLOCKERS_SHOWN_MAX: usize = 20;

/// A holder or waiter that blocks a waiting request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockerInfo {
    /// The holder or waiter.
    pub party: PartyInfo,
    /// The key that it holds or waits for: the waiter's own, or one above or below it.
    pub key: String,
    /// Its mode.
    pub mode: Mode,
    /// Whether it holds the key; otherwise it also waits, and goes first.
    pub holds: bool,
    /// When its hold or wait began, RFC 3339 UTC.
    pub since: String,
}

/// A process that holds or waits, as reports show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartyInfo {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its command; null if the caller may not see it.
    pub command: Option<String>,
    /// Its session.
    pub session: String,
    /// Whether it is a lease, not a process; `pid` is then 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lease: bool,
    /// For a request over nodes: its name at all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

/// One step of a deadlock, the refused request first: `waiter` waits for `key`, which `blocker`
/// holds or waits for ahead of it. The blocker's session is that of the next step's waiter; the
/// last blocker's is that of the first waiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleStepInfo {
    /// The waiter.
    pub waiter: PartyInfo,
    /// The key.
    pub key: String,
    /// Its mode at the key.
    pub mode: Mode,
    /// The blocker.
    pub blocker: BlockerInfo,
    /// The node at which it waits, by its name for the user; only over nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}
