//! An incarnation that the engine gave this host, and what is due for it.

use super::label::Others;
use super::{Deadlines, Timing};
use crate::core::HostId;
use crate::log::engine::Position;

/// Something that is due at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::host) struct Timer(pub(in crate::host) Option<u64>);

impl Timer {
    pub(in crate::host) fn set(&mut self, at_ms: u64) {
        self.0 = Some(at_ms);
    }

    pub(in crate::host) fn clear(&mut self) {
        self.0 = None;
    }

    pub(in crate::host) fn is_due(self, now_ms: u64) -> bool {
        self.0.is_some_and(|at_ms| at_ms <= now_ms)
    }
}

/// An incarnation that the engine gave us.
#[derive(Debug)]
pub(in crate::host) struct Incarnation {
    pub(in crate::host) host: HostId,
    pub(in crate::host) epoch: u128,
    pub(in crate::host) timing: Timing,
    /// Before the last renewal that succeeded was asked for: the TTL runs from then on at the
    /// latest.
    pub(in crate::host) since_ms: u64,
    pub(in crate::host) renewed_ms: Option<u64>,
    pub(in crate::host) renew: Timer,
    /// The last batch that there was, as of the last renewal.
    pub(in crate::host) head: Position,
    pub(in crate::host) others: Others,
    /// The log is being loaded; asked again when due.
    pub(in crate::host) loading: Option<Timer>,
    /// It is not known whether the log is still the one that was read; asked again when due.
    pub(in crate::host) confirming: Option<Timer>,
    /// When the engine could be reached again, until a renewal that was asked since is answered.
    pub(in crate::host) reconnected_ms: Option<u64>,
    /// How long the log was when it was first seen after the engine could be reached again.
    pub(in crate::host) head_then: Position,
    /// There are batches that should have been read when it is due.
    pub(in crate::host) behind: Timer,
}

impl Incarnation {
    pub(in crate::host) fn deadlines(&self) -> Deadlines {
        let Timing { ttl_ms, grace_ms, margin_ms, .. } = self.timing;
        let kill_at = (self.since_ms + ttl_ms).saturating_sub(margin_ms);
        Deadlines { term_at: kill_at.saturating_sub(grace_ms), kill_at }
    }

    /// Whether what is read now continues what was read before.
    pub(in crate::host) fn reads_on(&self) -> bool {
        self.loading.is_none()
    }

    pub(in crate::host) fn is_settled(&self) -> bool {
        self.loading.is_none() && self.confirming.is_none()
    }
}
