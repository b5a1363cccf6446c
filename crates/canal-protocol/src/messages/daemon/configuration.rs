//! The configuration of the daemon: reading it again, and its settings in force.

use serde::{Deserialize, Serialize};

/// `Reload`: reads the configuration again. Only for root and the daemon's user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {}

/// The result of a [`Reload`].
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
    #[serde(default)]
    pub restart: bool,
}

/// `Configuration`: asks for the settings in force and their sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationQuery {}

/// The reply to [`ConfigurationQuery`]; `canal config --json` prints it.
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
    #[must_use]
    pub fn new(name: impl Into<String>, value: impl Into<String>, source: SettingSource) -> Self {
        Self { name: name.into(), value: value.into(), source, line: None, by: None }
    }
}
