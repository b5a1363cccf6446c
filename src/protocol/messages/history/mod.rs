//! The messages about what ended.

use serde::{Deserialize, Serialize};

use crate::core::Mode;

/// `History`: requests and holds that have ended, the newest first, a page at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryQuery {
    /// Only what asked for this key or one below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Only what ended within so many milliseconds before now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Only what is of this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Only what ended otherwise than by a release or with exit status 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// At most so many records; a page has 500 at most in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Only records with smaller numbers: the `before` of the page before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}

/// The reply to a [`HistoryQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPage {
    /// The newest first.
    pub records: Vec<HistoryRecord>,
    /// If there is more: what the query for the next page says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// How many records the daemon had to leave out since it started, because too many came at once
    /// or its files could not be written.
    #[serde(default)]
    pub dropped: u64,
}

/// A request that has ended, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HistoryRecord {
    /// The number of the record at this host: later records have larger ones.
    pub number: u64,
    /// When it was asked for, RFC 3339 UTC.
    pub asked: String,
    /// When it ended, RFC 3339 UTC.
    pub ended: String,
    /// The same in milliseconds since 1970 UTC.
    #[serde(default)]
    pub ended_ms: u64,
    /// How it ended: `released`, `ended`, `expired`, `forced`, `lost`, `reboot`, `withdrawn`, `abandoned`,
    /// `timeout`, `full`, `paused`, `max-waiting`, `deadlock`, `too-large` or `mismatch`.
    pub how: String,
    /// The exit status of the process, if it ended by itself and the kernel told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// The signal that killed the process, if the kernel told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// Who released it by force, if that client called the daemon of this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<HistoryClient>,
    /// The deadlock, the refused request first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cycle: Vec<HistoryStep>,
    /// For how many milliseconds it waited.
    pub waited_ms: u64,
    /// For how many milliseconds it held its keys; null if it was never granted.
    pub held_ms: Option<u64>,
    /// What it asked for.
    pub items: Vec<HistoryItem>,
    /// The fencing token; null if it was never granted.
    pub token: Option<u64>,
    /// The session; null if it had none.
    pub session: Option<String>,
    /// The user.
    pub uid: u32,
    /// The process; 0 for a lease.
    pub pid: u32,
    /// What it ran; null if that is not the caller's to see.
    pub command: Option<String>,
    /// What the client wanted people to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The name of the host, if several share the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether no daemon saw the end. Then it held, or waited if it was never granted, for at least
    /// as long as stated, and `ended` is the last time at which that is known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
}

/// `HistoryStats`: how long what has ended waited and held its locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryStatsQuery {
    /// Only what asked for this key or one below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Only what ended within so many milliseconds before now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Only what is of this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// The reply to a [`HistoryStatsQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryStats {
    /// Of everything.
    pub all: HistoryCount,
    /// By user, those with the most records first.
    pub users: Vec<HistoryCount>,
    /// By command, as far as they are the caller's to see; those with the most records first.
    pub commands: Vec<HistoryCount>,
    /// How often waits of some lengths occurred, the shortest first.
    #[serde(default)]
    pub wait_bins: Vec<HistoryBin>,
    /// The same of holds.
    #[serde(default)]
    pub hold_bins: Vec<HistoryBin>,
    /// How much of each key was in use over time: first the key that was asked about, then those
    /// that were in use most.
    #[serde(default)]
    pub keys: Vec<HistoryKeyUse>,
    /// How long the requests for the key that was asked about would have waited with another number
    /// of slots; null if none of its slots were granted.
    #[serde(default)]
    pub slots: Option<HistorySlots>,
    /// Whether there are more users, commands or keys.
    #[serde(default)]
    pub left_out: bool,
    /// As in [`HistoryPage`].
    #[serde(default)]
    pub dropped: u64,
}

/// What was counted of some records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryCount {
    /// The user, if they are those of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The command, if they are those of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// How many commands they are, if they differ only in numbers; `command` then has `#` in place of
    /// each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commands: Option<u64>,
    /// How many records there are.
    pub count: u64,
    /// How many of them were never granted.
    pub refused: u64,
    /// How long those that were granted waited.
    pub waits: HistoryLengths,
    /// How long they held their keys.
    pub holds: HistoryLengths,
}

/// Lengths of time, rounded up by a 32nd at most; 0 where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryLengths {
    /// Half of them are not longer.
    pub median_ms: u64,
    /// 90 of 100 are not longer.
    pub p90_ms: u64,
    /// 99 of 100 are not longer.
    pub p99_ms: u64,
    /// The longest one.
    pub max_ms: u64,
}

/// How many lengths of time belong together: those that are longer than the bins before it allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryBin {
    /// The longest of them, in milliseconds; null of those that are longer than any bound.
    pub up_to_ms: Option<u64>,
    /// How many there are.
    pub count: u64,
}

/// How much of a key was in use over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryKeyUse {
    /// The key.
    pub key: String,
    /// How many requests were granted.
    pub granted: u64,
    /// How many slots it has: what is stored, else what the latest of the requests stated or was
    /// given; null if none asked for slots.
    pub size: Option<u64>,
    /// What was in use in all, in slots times milliseconds; a reader or writer counts as a slot.
    pub used_ms: u64,
    /// When the first bucket begins, RFC 3339 UTC. It ends, as all others, where the time since 1970
    /// is a multiple of `bucket_ms`.
    pub from: String,
    /// When the last bucket ends, RFC 3339 UTC: now.
    pub until: String,
    /// How long a bucket is, in milliseconds.
    pub bucket_ms: u64,
    /// What was in use in each bucket, in slots times milliseconds.
    pub used: Vec<u64>,
    /// How many slots the key had in each bucket, as far as its grants tell: a size counts from the
    /// first grant under it. Empty if none asked for slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<u64>,
}

/// How long requests would have waited with another number of slots, if they had come at the same
/// times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistorySlots {
    /// The key.
    pub key: String,
    /// How many slots it has now.
    pub present: u64,
    /// How many requests were replayed: those that were granted, the latest 10,000 at most.
    pub requests: u64,
    /// Whether there were more.
    #[serde(default)]
    pub more: bool,
    /// What the waiting would have been; fewer slots first.
    pub rows: Vec<HistorySlotsRow>,
}

/// How long requests would have waited with this number of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistorySlotsRow {
    /// How many slots.
    pub slots: u64,
    /// The waits.
    pub waits: HistoryLengths,
    /// How many requests ask for more slots than that.
    #[serde(default)]
    pub unfit: u64,
}

/// What was asked of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryItem {
    /// The key.
    pub key: String,
    /// In which way.
    pub mode: Mode,
    /// How many slots; 0 for a read or a write.
    #[serde(default)]
    pub count: u64,
    /// The numbers of its slots, as ranges: `0-3,7`. None of what was never granted, and of what shared
    /// the slots of another hold.
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
