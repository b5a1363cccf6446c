//! The messages about ended requests and holds.

use serde::{Deserialize, Serialize};

use canal_core::Mode;

/// `History`: asks for requests and holds that have ended, the newest first, a page at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryQuery {
    /// Only requests for this key or one below it.
    pub key: Option<String>,
    /// Only requests that ended within this many milliseconds before now.
    pub since_ms: Option<u64>,
    /// Only requests of this user.
    pub uid: Option<u32>,
    /// Only requests of this session.
    pub session: Option<String>,
    /// Only requests that ended neither by a release nor with exit status 0.
    pub failed: bool,
    /// The most records to return; a page never has more than 500.
    pub limit: Option<u64>,
    /// Only records with smaller numbers: the `before` of the previous page.
    pub before: Option<u64>,
}

/// The reply to a [`HistoryQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPage {
    /// The newest first.
    pub records: Vec<HistoryRecord>,
    /// If there are more records: the `before` of the query for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// The number of records that the daemon has dropped since it started, because too many came at
    /// once or its files could not be written.
    pub dropped: u64,
}

/// A request that has ended, as reports show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryRecord {
    /// The number of the record at this host; later records have larger ones.
    pub number: u64,
    /// The time of the request, RFC 3339 UTC.
    pub asked: String,
    /// When it ended, RFC 3339 UTC.
    pub ended: String,
    /// When it ended, in milliseconds since 1970 UTC.
    pub ended_ms: u64,
    /// How it ended: `released`, `ended`, `expired`, `forced`, `lost`, `reboot`, `withdrawn`,
    /// `abandoned`, `timeout`, `killed`, `max-run`, `full`, `paused`, `max-waiting`, `superseded`,
    /// `deadlock`, `too-large` or `mismatch`.
    pub how: String,
    /// The exit status of the process, if it exited and the kernel reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// The signal that killed the process, if the kernel reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// The client that released it by force or killed it while it waited, if it called this host's
    /// daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<HistoryClient>,
    /// The deadlock, the refused request first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cycle: Vec<HistoryStep>,
    /// How many milliseconds it waited.
    pub waited_ms: u64,
    /// How many milliseconds it held its keys; null if it was never granted.
    pub held_ms: Option<u64>,
    /// The requested items.
    pub items: Vec<HistoryItem>,
    /// The fencing token; null if it was never granted.
    pub token: Option<u64>,
    /// The session; null if it had none.
    pub session: Option<String>,
    /// The number of its background job, if it is one of the caller's. The daemon does not know;
    /// `canal history` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// The user.
    pub uid: u32,
    /// The process; 0 for a lease.
    pub pid: u32,
    /// Its command; null if the caller may not see it.
    pub command: Option<String>,
    /// The user's note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The name of the host, if several share the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether no daemon saw the end. Then it held (or waited, if it was never granted) at least as
    /// long as stated, and `ended` is the last time at which that is known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
}

/// `HistoryStats`: asks how long ended requests waited and held their locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryStatsQuery {
    /// Only requests for this key or one below it.
    pub key: Option<String>,
    /// Only requests that ended within this many milliseconds before now.
    pub since_ms: Option<u64>,
    /// Only requests of this user.
    pub uid: Option<u32>,
}

/// The reply to a [`HistoryStatsQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryStats {
    /// The counts of all records.
    pub all: HistoryCount,
    /// The counts by user, those with the most records first.
    pub users: Vec<HistoryCount>,
    /// The counts by command, for the commands that the caller may see; those with the most records
    /// first.
    pub commands: Vec<HistoryCount>,
    /// How often waits of some lengths occurred, the shortest first.
    pub wait_bins: Vec<HistoryBin>,
    /// How often holds of some lengths occurred, the shortest first.
    pub hold_bins: Vec<HistoryBin>,
    /// The use of each key over time: first the key of the query, then those with the most use.
    pub keys: Vec<HistoryKeyUse>,
    /// How long the requests for the key of the query would have waited with another number of
    /// slots; null if none of its slots were granted.
    pub slots: Option<HistorySlots>,
    /// Whether there are more users, commands or keys.
    pub left_out: bool,
    /// The number of dropped records, as in [`HistoryPage`].
    pub dropped: u64,
}

/// The counts of some records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryCount {
    /// The user, if they belong to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The command, if they belong to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The number of commands, if they differ only in numbers; `command` then has `#` in place of
    /// each number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commands: Option<u64>,
    /// The number of records.
    pub count: u64,
    /// The number that were never granted.
    pub refused: u64,
    /// How long the granted requests waited.
    pub waits: HistoryLengths,
    /// How long they held their keys.
    pub holds: HistoryLengths,
}

/// Lengths of time, rounded up by at most 1/32; 0 without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryLengths {
    /// Half of them are at most this long.
    pub median_ms: u64,
    /// 90 of 100 are at most this long.
    pub p90_ms: u64,
    /// 99 of 100 are at most this long.
    pub p99_ms: u64,
    /// The longest one.
    pub max_ms: u64,
}

/// The number of lengths in one bin: those that exceed the bin before it, up to its own bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryBin {
    /// The bound, in milliseconds; null for lengths beyond all bounds.
    pub up_to_ms: Option<u64>,
    /// The number of lengths.
    pub count: u64,
}

/// The use of a key over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryKeyUse {
    /// The key.
    pub key: String,
    /// The number of granted requests.
    pub granted: u64,
    /// Its size: the stored one, or the one that the latest of the requests passed or was given;
    /// null if none asked for slots.
    pub size: Option<u64>,
    /// The total use, in slots times milliseconds; a reader or writer counts as a slot.
    pub used_ms: u64,
    /// When the first bucket begins, RFC 3339 UTC. Each bucket ends at a multiple of `bucket_ms`
    /// since 1970.
    pub from: String,
    /// When the last bucket ends, RFC 3339 UTC: now.
    pub until: String,
    /// How long a bucket is, in milliseconds.
    pub bucket_ms: u64,
    /// The use of each bucket, in slots times milliseconds.
    pub used: Vec<u64>,
    /// The number of slots of the key in each bucket, according to its grants: a size counts from
    /// the first grant under it. Empty if none asked for slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<u64>,
    /// How long granted requests waited in each bucket, in requests times milliseconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waited: Vec<u64>,
}

/// How long requests would have waited with another number of slots, if they had arrived at the
/// same times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistorySlots {
    /// The key.
    pub key: String,
    /// The current number of slots.
    pub present: u64,
    /// The number of replayed requests: those that were granted, at most the latest 10,000.
    pub requests: u64,
    /// Whether there were more.
    pub more: bool,
    /// The simulated waits; fewer slots first.
    pub rows: Vec<HistorySlotsRow>,
}

/// How long requests would have waited with this number of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistorySlotsRow {
    /// The number of slots.
    pub slots: u64,
    /// The waits.
    pub waits: HistoryLengths,
    /// The number of requests for more slots than that.
    pub unfit: u64,
}

/// The part of a request for one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryItem {
    /// The key.
    pub key: String,
    /// The mode.
    pub mode: Mode,
    /// The number of slots; 0 for a read or a write.
    pub count: u64,
    /// The numbers of its slots, as ranges: `0-3,7`. Null if it was never granted, or shared the
    /// slots of another hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<String>,
}

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryClient {
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: u32,
}

/// One step of a deadlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryStep {
    /// The session that waited.
    pub session: String,
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: u32,
    /// The key that it waited for.
    pub key: String,
}
