//! The settings of a key: what an operator stored for everyone, until someone changes it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::View;

/// How many slots or buckets of a key can be out of service.
pub const WITHOUT_MAX: usize = 1024;

/// The stored settings of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Settings {
    /// The stored view, which applies to every request for slots of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
    /// Whether the key is paused: it grants only slots that a request can share.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Its buckets that are out of service; for the slots kind, the slots.
    #[serde(default, skip_serializing_if = "super::id::is_zero")]
    pub without: OutOfService,
}

impl Settings {
    /// Whether nothing is stored.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Changes one setting.
    pub fn set(&mut self, setting: &Setting) {
        match setting {
            Setting::View(view) => self.view = *view,
            Setting::Paused(paused) => self.paused = *paused,
            Setting::Service { numbers, out: true } => self.without.0.extend(numbers),
            Setting::Service { numbers, out: false } => {
                self.without.0.retain(|number| !numbers.contains(number));
            }
        }
    }
}

/// One setting of a key, and its new value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// Stores a view, or removes the stored one (`None`).
    View(Option<View>),
    /// Pauses the key, or resumes it. A paused key keeps its view, its kind and its holders, but
    /// grants no further slots.
    Paused(bool),
    /// Takes buckets (for the slots kind: slots) out of service, or returns them. Their holders
    /// keep them, but no one else gets them.
    Service {
        /// The numbers of the buckets.
        numbers: Vec<u64>,
        /// Whether they are out of service from now on.
        out: bool,
    },
}

/// The buckets of a key that are out of service; for the slots kind, the slots. The view of a
/// request determines which slots belong to a bucket. The numbers are those of buckets, not of
/// fixed slots. So a number means the same bucket (for example, the same GPU) for every `per` that
/// a caller states.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OutOfService(pub BTreeSet<u64>);
