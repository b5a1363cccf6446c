//! What is shown of who waits for whom.

use serde::{Deserialize, Serialize};

use crate::protocol::Mode;

/// `Why`: follows who waits for whom, from one process or session to the end. Exactly one of the
/// two says from where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyQuery {
    /// A process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// A session, as status shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// `Graph`: everyone who waits, and for whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphQuery {}

/// Who waits for whom: the reply to [`WhyQuery`] (in the order in which they are met, the one asked
/// for first; empty if it waits for nothing) and [`GraphQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// One for each waiting request.
    pub waits: Vec<WaitInfo>,
    /// How many more there are.
    #[serde(default, skip_serializing_if = "is_none_left")]
    pub left_out: u64,
}

pub(crate) fn is_none_left(n: &u64) -> bool {
    *n == 0
}

/// A waiting request and those who keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitInfo {
    /// Who waits.
    pub waiter: PartyInfo,
    /// The key that keeps it.
    pub key: String,
    /// In which way it wants the key.
    pub mode: Mode,
    /// Since when it waits, RFC 3339 UTC.
    pub since: String,
    /// Why, in one clause.
    pub reason: String,
    /// Those who keep it; at most [`BLOCKERS_SHOWN_MAX`].
    pub blockers: Vec<BlockerInfo>,
    /// How many more there are.
    #[serde(default, skip_serializing_if = "is_none_left")]
    pub blockers_left_out: u64,
}

/// How many blockers a [`WaitInfo`] names at most.
pub const BLOCKERS_SHOWN_MAX: usize = 20;

/// One who keeps a waiting request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockerInfo {
    /// Who.
    pub party: PartyInfo,
    /// The key that it holds or waits for; the waiter's own, or one above or below it.
    pub key: String,
    /// In which way.
    pub mode: Mode,
    /// Whether it holds the key; else it waits too and goes first.
    pub holds: bool,
    /// Since when it holds or waits, RFC 3339 UTC.
    pub since: String,
}

/// A process that holds or waits, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartyInfo {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// What it runs; null if that is not the caller's to see.
    pub command: Option<String>,
    /// Its session.
    pub session: String,
    /// Whether it is a lease and no process; `pid` is 0 then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lease: bool,
}

/// One step of a deadlock, the refused request first: `waiter` waits for `key`, which `blocker`
/// holds or goes first for. The blocker's session is the next step's waiter's; the last one's is
/// the first's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleStepInfo {
    /// Who waits.
    pub waiter: PartyInfo,
    /// For which key.
    pub key: String,
    /// In which way it wants it.
    pub mode: Mode,
    /// For whom.
    pub blocker: BlockerInfo,
}
