//! Clocks.

/// Milliseconds of CLOCK_BOOTTIME: monotonic, and suspend counts.
#[must_use]
pub fn boottime_ms() -> u64 {
    todo!()
}

/// Milliseconds since 1970-01-01 UTC by the system's clock; to show, never to decide.
#[must_use]
pub fn unix_ms() -> u64 {
    todo!()
}
