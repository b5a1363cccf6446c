//! Views: the capacity of a counted lock as a caller sees it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The capacity of a counted lock: as a caller states it in a request, or as an operator stored it
/// for everyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum View {
    /// `per` slots for each of `buckets` backends. Every request takes slots, even from a process
    /// that already holds the lock.
    Buckets {
        /// Slots per bucket, at least 1.
        per: u64,
        /// The number of buckets; 0 admits no request.
        buckets: u64,
    },
    /// The slots of a lock that is re-entrant for its owner.
    Slots {
        /// The number of slots, at least 1.
        slots: u64,
    },
}

/// The two kinds of counted lock, which differ only in re-entrancy. A key has one kind while it is
/// in use or has a stored view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `--per`/`--buckets`: not re-entrant.
    Buckets,
    /// `--slots`: re-entrant.
    Slots,
}

impl View {
    /// The view of a request without one, where nothing else defines the size of the lock.
    pub const ONE: Self = Self::Slots { slots: 1 };

    /// The number of slots at once; saturates at `u64::MAX`.
    #[must_use]
    pub fn capacity(self) -> u64 {
        match self {
            Self::Buckets { per, buckets } => per.saturating_mul(buckets),
            Self::Slots { slots } => slots,
        }
    }

    /// The number of slots in each bucket; 1 for the slots kind.
    #[must_use]
    pub fn unit(self) -> u64 {
        match self {
            Self::Buckets { per, .. } => per.max(1),
            Self::Slots { .. } => 1,
        }
    }

    /// The kind of lock that this view describes.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Buckets { .. } => Kind::Buckets,
            Self::Slots { .. } => Kind::Slots,
        }
    }

    /// The bucket that contains a slot; `None` for the slots kind.
    #[must_use]
    pub fn bucket(self, slot: u64) -> Option<u64> {
        match self {
            Self::Buckets { per, .. } => slot.checked_div(per),
            Self::Slots { .. } => None,
        }
    }
}

/// As status and messages show it: `3x2` or `4`.
impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buckets { per, buckets } => write!(f, "{per}x{buckets}"),
            Self::Slots { slots } => write!(f, "{slots}"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Buckets => "buckets",
            Self::Slots => "slots",
        })
    }
}
