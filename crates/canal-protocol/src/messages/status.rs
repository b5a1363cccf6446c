//! Holds, waiters and what blocks them, leaders, hosts and the daemon, as reports show them.

use serde::{Deserialize, Serialize};

use crate::{Kind, LeaseInfo, Mode, RunId};
use canal_core::{NodeId, Require};

/// `Status`: asks for holders and waiters. With `more`, a new [`Status`] follows each change (at
/// most a few a second) until the caller closes the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusQuery {
    /// Only this key and those below it.
    pub key: Option<String>,
    /// Only the caller's holds and waiting requests, and their keys.
    pub mine: bool,
    /// Only the holds and waiting requests of this user, and their keys. `mine` takes precedence.
    pub uid: Option<u32>,
    /// Only the holds and waiting requests of this session, and their keys.
    pub session: Option<String>,
    /// Only keys for which a request waits; with `mine` or `uid`, one of that user.
    pub waiting: bool,
    /// Whether to include details that need a lookup for each holder: its working folder, and the
    /// processes that keep a hold with `with_children`.
    pub full: bool,
    /// Only keys in use or with a stored view that begin with this text, names only, at most this
    /// many; for completion.
    pub names_max: Option<u64>,
}

/// The output of `canal status --json`. `K`: [`KeyInfo`]s, in any form that is encoded as an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status<K = Vec<KeyInfo>> {
    /// The daemon that answers.
    pub daemon: DaemonInfo,
    /// The keys in use or with a stored view, in the order of their names.
    pub keys: K,
    /// The number of keys omitted, if there are very many.
    #[serde(default, skip_serializing_if = "is_default")]
    pub left_out: u64,
    /// The engine that keeps the table, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineInfo>,
    /// The hosts that share the table; none without an engine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostInfo>,
}

/// An engine, as one host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Its address, without user, password and parameters.
    pub name: String,
    /// `member`, `joining` (not yet a member, or no longer one), `away` (unreachable), `unable`
    /// (unusable in its present state).
    pub state: String,
    /// The name of this host.
    pub host: String,
    /// The number of this host's incarnation; null while it is no member.
    pub id: Option<u64>,
    /// How many milliseconds a host lives without a renewal.
    pub ttl_ms: u64,
    /// The time of this host's last renewal.
    pub renewed: Option<String>,
    /// When the commands of this host are signalled to end unless it renews first.
    pub stops: Option<String>,
    /// Since when it is unreachable.
    pub away_since: Option<String>,
    /// Why it is unreachable, unusable or full, or the event for which the host waits before it
    /// joins.
    pub why: Option<String>,
    /// The action to take.
    pub hint: Option<String>,
    /// The recovery of the table, while it lasts: nothing is granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryInfo>,
}

/// A recovery of the table after its engine may have lost entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryInfo {
    /// When it began.
    pub since: String,
    /// The hosts that it waits for: each must report, or be gone.
    pub hosts: Vec<String>,
    /// How many more milliseconds it waits, because entries may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
}

/// A host that shares the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Its name.
    pub host: String,
    /// The number of its incarnation.
    pub id: u64,
    /// When it became a member.
    pub since: String,
    /// When it was last seen to renew or to live; null before the first time.
    pub renewed: Option<String>,
    /// Whether it is the host of the daemon that answers.
    pub here: bool,
}

/// A daemon, as reports show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Its process.
    pub pid: u32,
    /// Its program's version.
    pub version: String,
    /// The path of its socket.
    pub socket: String,
    /// When it started, RFC 3339 UTC.
    pub since: String,
    /// Its user.
    pub uid: u32,
    /// Facts that the operator should know (fallbacks in use, limits that could not be reset).
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A key, as reports show it. `W`: [`WaiterInfo`]s, in any form that is encoded as an array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyInfo<W = Vec<WaiterInfo>> {
    /// The key.
    pub key: String,
    /// Null if it is not in use and has no stored view.
    pub kind: Option<Kind>,
    /// The number of held slots.
    pub held: u64,
    /// Its size: the stored one, or that of a request without a size. Holders that passed larger
    /// sizes may hold more slots.
    pub capacity: Option<u64>,
    /// The view of `capacity`, as `3x2` or `4`.
    pub view: Option<String>,
    /// Whether a view is stored.
    pub stored: bool,
    /// Whether it is paused: it grants no slots until it is resumed.
    #[serde(default)]
    pub paused: bool,
    /// The buckets that are out of service, which `capacity` does not count; for the slots kind,
    /// the slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<u64>,
    /// The number of waiters.
    pub waiting: u64,
    /// The holders, the longest first.
    pub holders: Vec<HolderInfo>,
    /// The waiters, in the order in which they are granted.
    pub waiters: W,
    /// The number of holders and waiters omitted, if the status would be very long.
    #[serde(default, skip_serializing_if = "is_default")]
    pub left_out: u64,
}

/// A holder, as reports show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderInfo {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its command; null if the caller may not see it.
    pub command: Option<String>,
    /// When it was granted, RFC 3339 UTC.
    pub since: String,
    /// Its fencing token.
    pub token: u64,
    /// Its slots of the key; empty if the report is not about one key.
    pub slots: Vec<u64>,
    /// The bucket of its slots of the key; absent if they are in several, if the lock has no
    /// buckets, or if the report is not about one key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<u64>,
    /// The working folder of its process, if requested, known and visible to the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// For a hold that descendants of the owner keep, if requested: the means to find them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<ChildrenInfo>,
    /// Its mode at the key; absent if the report is not about one key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The key that it holds, if that is above or below the key of the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its session.
    pub session: String,
    /// The number of its background job, if it is one of the caller's. The daemon does not know;
    /// `canal status` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// Its host; null on one machine.
    pub host: Option<String>,
    /// `running`, `stopped`, `frozen`, `children` (only descendants are left), `unverified` (after
    /// a restart the daemon could not verify that it is the same process).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// For a lease, whose `pid` is 0: how long it lives. `command` is the one that requested it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseInfo>,
    /// How long its `canal run` lets it run after `since`, in milliseconds; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<u64>,
    /// Its note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// For a part of a request over nodes: the whole request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_nodes: Option<Box<OverNodesInfo>>,
}

/// The processes that keep a hold: those that have its FIFO open for writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildrenInfo {
    /// The device of the FIFO.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// The processes that the reporting process can see. The daemon does not look for them; `canal
    /// status` does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<u32>,
}

/// A waiter, as reports show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterInfo {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its future command; null if the caller may not see it.
    pub command: Option<String>,
    /// When its wait began, RFC 3339 UTC.
    pub since: String,
    /// 1 is granted next.
    pub position: u64,
    /// Its priority.
    pub priority: i32,
    /// How many slots of the key it asks for; 0 for a read or write item.
    pub count: u64,
    /// Its mode at the key.
    pub mode: Mode,
    /// The view that it passes, as `3x2` or `4`; null without one.
    pub view: Option<String>,
    /// Its session.
    pub session: String,
    /// The number of its background job, if it is one of the caller's. The daemon does not know;
    /// `canal status` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// Its host; null on one machine.
    pub host: Option<String>,
    /// Why it waits, in one clause.
    pub reason: String,
    /// For a waiter for a lease, whose `pid` is 0: how long the lease will live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseInfo>,
    /// Its note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// For a part of a request over nodes: the whole request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_nodes: Option<Box<OverNodesInfo>>,
    /// How much longer it will probably wait, if enough is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateInfo>,
}

/// A request over nodes as one of its nodes shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverNodesInfo {
    /// The request over all its nodes.
    pub run: RunId,
    /// The ids of its nodes.
    pub nodes: Vec<NodeId>,
    /// How many of them must grant it, as requested.
    pub require: Require,
    /// `require` as a number of nodes.
    pub need: u64,
    /// How many have granted it by now, as its client last reported; null without a report.
    pub held: Option<u64>,
    /// The nodes that it waits for, as its client last reported.
    pub waits_for: Vec<String>,
    /// Whether this part is not confirmed yet: it waits, or it ends with its connection.
    pub collecting: bool,
    /// Whether enough other nodes had granted the request when this part was requested.
    pub spare: bool,
}

/// How much longer a request will probably wait, estimated from recent holds by the commands ahead
/// of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EstimateInfo {
    /// One such wait in ten is shorter, in milliseconds.
    pub low_ms: u64,
    /// Half of them are shorter.
    pub median_ms: u64,
    /// Nine in ten are at most this long.
    pub high_ms: u64,
}

/// `Why`: follows the waits of one process or session to the end of the chain, and the waits of the
/// requests that wait for it. Exactly one of the two fields is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WhyQuery {
    /// A process.
    pub pid: Option<u32>,
    /// A session, as status shows it.
    pub session: Option<String>,
}

/// Waiters and their blockers. The reply to [`WhyQuery`] has them in the order of the chain, the
/// requested one first, and is empty if it waits for nothing. Also the reply to `Graph`,
/// which asks for all waiters and their blockers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// One for each waiting request.
    pub waits: Vec<WaitInfo>,
    /// The number omitted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub left_out: u64,
    /// In the reply to [`WhyQuery`]: the requests that wait for the one in the query, directly
    /// first, then those that wait for these, and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiters: Vec<WaitInfo>,
    /// The number of waiting requests that were not examined, if there are very many.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiters_left_out: u64,
}

/// Whether a field has its default value, which is omitted.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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
    /// Its first blockers.
    pub blockers: Vec<BlockerInfo>,
    /// The number omitted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub blockers_left_out: u64,
}

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

/// `Leader`: asks for the leader that holds exactly this key. With `more`, replies again after each
/// change.
///
/// The error is [`NotExclusive`](crate::ErrorName::NotExclusive) if several holders can
/// have the key at once; it also ends a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderQuery {
    /// The key.
    pub key: String,
}

/// The reply to a [`LeaderQuery`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// The holder; null while there is none. The state of its process is not looked up.
    pub leader: Option<HolderInfo>,
    /// Whether this may be out of date: the daemon works over an engine and does not receive the
    /// other hosts' changes. Without a leader: whether the daemon knows none because of that.
    pub stale: bool,
}
