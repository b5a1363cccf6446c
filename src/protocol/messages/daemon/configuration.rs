//! The configuration of the daemon: reading it again, and what is in force.

use serde::{Deserialize, Serialize};

/// `Reload`: reads the configuration again. Root and the daemon's user only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {}

/// What a [`Reload`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reloaded {
    /// The file that was read; null if there is none.
    pub file: Option<String>,
    /// The settings that are stated differently from before.
    pub changed: Vec<SettingChange>,
    /// What is not used although it is stated, and why; for people.
    pub notes: Vec<String>,
}

/// A setting that two configurations state differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingChange {
    /// Such as `limits.connections`, `keys.db`, `permission[0]`.
    pub name: String,
    /// What was stated; null if nothing was.
    pub before: Option<String>,
    /// What is stated now; null if nothing is.
    pub now: Option<String>,
    /// Whether it is in force only after a restart of the daemon.
    #[serde(default)]
    pub restart: bool,
}

/// `Configuration`: what is in force, and where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationQuery {}

/// The reply to [`ConfigurationQuery`]; what `canal config --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Configuration {
    /// The file that was read; null if there is none.
    pub file: Option<String>,
    /// The files of which the daemon reads the first that exists.
    pub candidates: Vec<String>,
    /// When it was read.
    pub read: String,
    /// What is in force, by name.
    pub settings: Vec<SettingInfo>,
    /// Settings that the file states differently by now, and that are not in force. Only root and the
    /// daemon's user are told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<SettingChange>,
    /// Why the file cannot be used as it is now. Only root and the daemon's user are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Whether settings are left out, because the caller is neither root nor the daemon's user: all but
    /// sizes, permissions and limits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withheld: bool,
}

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SettingInfo {
    /// Such as `limits.connections`, `keys.db`, `permission[0]`.
    pub name: String,
    /// Its value, as it could be written in the file.
    pub value: String,
    /// Where it comes from.
    pub source: SettingSource,
    /// The line in the file, of a setting from the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The option, the variable, or the command that stored it; of a setting from none of these,
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Where a setting comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingSource {
    /// Nothing states it.
    Default,
    /// The configuration file.
    File,
    /// An option of the daemon.
    CommandLine,
    /// A variable in the environment of the daemon.
    Environment,
    /// It is stored in the table, which comes before the file.
    Stored,
}

impl SettingInfo {
    /// A setting that comes from there.
    #[must_use]
    pub fn new(name: impl Into<String>, value: impl Into<String>, source: SettingSource) -> Self {
        Self { name: name.into(), value: value.into(), source, line: None, by: None }
    }
}
