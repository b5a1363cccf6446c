//! The host's current incarnation, and its timers.
//!
//! A timer is the time in milliseconds of CLOCK_BOOTTIME at which something is due.

use super::label::Others;
use super::{Deadlines, Timing};
use canal_core::HostId;
use canal_log::engine::{Call, Position};

/// Whether a timer, which is `None` while it is not set, has expired.
pub(in crate::host) fn is_due(timer: Option<u64>, now_ms: u64) -> bool {
    timer.is_some_and(|at_ms| at_ms <= now_ms)
}

/// An incarnation that the engine gave this host.
#[derive(Debug)]
pub(in crate::host) struct Incarnation {
    pub(in crate::host) host: HostId,
    pub(in crate::host) epoch: u128,
    pub(in crate::host) timing: Timing,
    /// When the last successful renewal was sent, or earlier. This host counts the TTL from this
    /// time.
    pub(in crate::host) since_ms: u64,
    pub(in crate::host) renewed_ms: Option<u64>,
    pub(in crate::host) renew: Option<u64>,
    /// The last batch in the log, as of the last renewal.
    pub(in crate::host) head: Position,
    pub(in crate::host) others: Others,
    /// Set while the log is loading; the call is repeated when due.
    pub(in crate::host) loading: Option<u64>,
    /// Set while the host confirms that the log is still the one that it read; the call is repeated
    /// when due.
    pub(in crate::host) confirming: Option<u64>,
    /// When the engine became reachable again, until a renewal sent since then is answered.
    pub(in crate::host) reconnected_ms: Option<u64>,
    /// The length of the log when it was first seen after the engine became reachable again.
    pub(in crate::host) head_then: Position,
    /// Set while there are batches that this host has not read; it reads them when due.
    pub(in crate::host) behind: Option<u64>,
}

impl Incarnation {
    pub(in crate::host) fn deadlines(&self) -> Deadlines {
        let Timing { ttl_ms, grace_ms, margin_ms, .. } = self.timing;
        let kill_at = (self.since_ms + ttl_ms).saturating_sub(margin_ms);
        Deadlines { term_at: kill_at.saturating_sub(grace_ms), kill_at }
    }

    /// The call that loads the log, to be repeated when due.
    pub(in crate::host) fn load(&mut self, now_ms: u64) -> Call {
        self.loading = Some(now_ms + self.timing.ttl_ms / 2);
        self.confirming = None;
        self.behind = None;
        Call::Load
    }

    /// Whether the next batches continue those read before.
    pub(in crate::host) fn reads_on(&self) -> bool {
        self.loading.is_none()
    }

    pub(in crate::host) fn is_settled(&self) -> bool {
        self.loading.is_none() && self.confirming.is_none()
    }
}
