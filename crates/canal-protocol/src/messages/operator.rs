//! An operator's calls: to the daemon itself and its configuration, and those that change the size
//! of a lock or the priority of waiters, or send signals.

use serde::{Deserialize, Serialize};

use super::status::is_default;
use crate::{PartyInfo, Tag};

/// The parameters of `Metrics`, `Graph`, `Configuration`, `Reload`, `Stop` and `Identify`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoParameters {}

/// The reply to `Metrics`: the daemon's counters and the state of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// All figures, in the format of OpenMetrics 1.0.
    pub text: String,
}

/// The reply to `Stop`, which ends the daemon; the next daemon takes over its holds. Only for the
/// same user and root. The daemon replies before it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// The process that will end.
    pub pid: u32,
}

/// The reply to `Reload`, which reads the configuration again. Only for root and the daemon's user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The file that was read; null if there is none.
    pub file: Option<String>,
    /// The settings that changed in the file.
    pub changed: Vec<SettingChange>,
    /// The settings in the file that are not used, and why; for people.
    pub notes: Vec<String>,
}

/// A setting that differs between two configurations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingChange {
    /// Such as `limits.connections`, `keys.db`, `permission[0]`.
    pub name: String,
    /// The old value; null without one.
    pub before: Option<String>,
    /// The new value; null without one.
    pub now: Option<String>,
    /// Whether it takes effect only after a restart of the daemon.
    pub restart: bool,
}

/// The reply to `Configuration`, which asks for the settings in force and their sources. `canal
/// config --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The file that was read; null if there is none.
    pub file: Option<String>,
    /// The candidate files, of which the daemon reads the first that exists.
    pub candidates: Vec<String>,
    /// When it was read.
    pub read: String,
    /// The settings in force, by name.
    pub settings: Vec<SettingInfo>,
    /// Settings that have changed in the file and are not in force. Only for root and the daemon's
    /// user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<SettingChange>,
    /// Why the file is now invalid. Only for root and the daemon's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Whether settings are omitted because the caller is neither root nor the daemon's user: all
    /// but sizes, permissions and limits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withheld: bool,
}

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingInfo {
    /// Such as `limits.connections`, `keys.db`, `permission[0]`.
    pub name: String,
    /// Its value, as the file could contain it.
    pub value: String,
    /// Its source.
    pub source: SettingSource,
    /// The line in the file, if the file is the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The option, the variable, or the command that stored it; null for other sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The source of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingSource {
    /// No source sets it.
    Default,
    /// The configuration file.
    File,
    /// An option of the daemon.
    CommandLine,
    /// A variable in the environment of the daemon.
    Environment,
    /// It is stored in the table, which takes precedence over the file.
    Stored,
}

impl SettingInfo {
    /// A setting from this source.
    pub fn new(name: impl Into<String>, value: impl Into<String>, source: SettingSource) -> Self {
        Self { name: name.into(), value: value.into(), source, line: None, by: None }
    }
}

/// `Resize`: stores or forgets the size of a key, pauses or resumes it, or takes parts of it out of
/// service or returns them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    /// The key.
    pub key: String,
    /// The number of slots in each bucket; requires `buckets`.
    pub per: Option<u64>,
    /// The number of buckets; requires `per`.
    pub buckets: Option<u64>,
    /// The number of slots, instead of `per` and `buckets`. 0 pauses the key.
    pub slots: Option<u64>,
    /// Whether to forget the stored view.
    #[serde(default)]
    pub forget: bool,
    /// Pauses the key (true) or resumes it (false); its stored view stays.
    pub pause: Option<bool>,
    /// Takes these buckets (for the slots kind: slots) out of service; its stored view stays.
    pub without: Option<Vec<u64>>,
    /// Returns these buckets or slots to service.
    pub with: Option<Vec<u64>>,
}

/// The result of a [`Resize`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// The key.
    pub key: String,
    /// The previously stored view, as `3x2` or `4`.
    pub before: Option<String>,
    /// The view that is now stored.
    pub now: Option<String>,
    /// Whether the key is now paused.
    pub paused: bool,
    /// The buckets that are now out of service; for the slots kind, the slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<u64>,
    /// The number of slots currently held.
    pub held: u64,
    /// The number of waiters.
    pub waiting: u64,
}

/// `Prioritize`: gives the waiting requests of a session another priority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prioritize {
    /// The session.
    pub session: String,
    /// The new priority. Absent: a priority that puts it before all others that wait for its keys.
    pub priority: Option<i32>,
}

/// The result of a [`Prioritize`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prioritized {
    /// The session.
    pub session: String,
    /// The previous priority.
    pub before: i32,
    /// The priority that it has now.
    pub priority: i32,
    /// Its position at the key that blocks it; 0 if it was granted.
    pub position: u64,
}

/// `WouldKill`: returns the holds and waiting requests whose processes a [`Kill`] may signal.
/// Signals nothing. Exactly one of `key`, `pid`, `session`, `token`, `request` and `superseded_by`
/// selects them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WouldKill {
    /// Those of exactly this key.
    pub key: Option<String>,
    /// Those of this process of this host, including the waiting ones.
    pub pid: Option<u32>,
    /// Those of this session, including the waiting ones.
    pub session: Option<String>,
    /// The hold with this token.
    pub token: Option<u64>,
    /// This waiting request.
    pub request: Option<u64>,
    /// The holds that the request with this tag supersedes. There may be none.
    pub superseded_by: Option<Tag>,
    /// With `key`: also the requests that wait for it.
    pub waiters: bool,
}

/// The reply to a [`WouldKill`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillTargets {
    /// The holds, oldest first, then the waiting requests in the order in which they are granted.
    pub targets: Vec<KillTarget>,
    /// The number omitted, if there are very many.
    #[serde(default, skip_serializing_if = "is_default")]
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
    pub token: Option<u64>,
    /// The number of a waiting request.
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
