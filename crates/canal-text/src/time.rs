//! Points in time as messages state them.

/// A time in milliseconds since 1970 UTC, as RFC 3339 UTC.
pub fn utc(at_ms: u64) -> String {
    let at = i64::try_from(at_ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(at).unwrap_or(jiff::Timestamp::MAX).to_string()
}
