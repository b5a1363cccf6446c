//! How long nodes may be silent, and the durations that follow from a TTL.

use super::Millis;

/// How long a node may be silent while it is needed, in milliseconds.
pub(crate) const SILENCE_MS: Millis = 5_000;

/// How long to try to reach nodes without which nothing can be done.
pub(crate) const PATIENCE_MS: Millis = 3 * SILENCE_MS;

/// The same as the first while enough others answer: then it is passed over.
pub(crate) const PASS_OVER_MS: Millis = 1_000;

/// A coordinator that is called this many milliseconds later than it wanted was stopped. For the
/// same time it then reads the messages that arrived meanwhile, before it counts any node as
/// silent.
pub(crate) const LATE_MS: Millis = 1_000;

/// The durations that follow from a TTL, in milliseconds. Grace and margin have the same
/// proportions as over an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The time to live.
    pub ttl_ms: Millis,
    /// How often a lease is renewed.
    pub renewal_ms: Millis,
    /// From TERM to KILL.
    pub grace_ms: Millis,
    /// From KILL to the end of the TTL. Clocks may differ by a tenth of it, and it takes time to
    /// end a command.
    pub margin_ms: Millis,
    /// How long a node that holds a lease of a running command may be silent.
    pub renewal_silence_ms: Millis,
}

impl Timing {
    /// The durations for a TTL.
    pub fn new(ttl_ms: u64) -> Self {
        Self {
            ttl_ms,
            renewal_ms: ttl_ms / 3,
            grace_ms: ttl_ms / 6,
            margin_ms: ttl_ms / 12,
            renewal_silence_ms: SILENCE_MS.min(ttl_ms / 6),
        }
    }

    /// How long a command may run without a renewal.
    pub(crate) fn lived_ms(&self) -> Millis {
        self.ttl_ms - self.margin_ms
    }
}
