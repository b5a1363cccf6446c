//! Reads durations on the command line.

use std::time::Duration;

use crate::core::{LEASE_MS_MAX, LEASE_MS_MIN};
use crate::duration::{self, NOT_A_DURATION};
pub(crate) use crate::duration::{short, stated};

/// The value of `--wait` and similar options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// A limited time.
    Finite(Duration),
    /// No limit.
    Infinite,
}

impl Length {
    /// The time, unless there is no limit.
    pub(crate) fn finite(self) -> Option<Duration> {
        match self {
            Self::Finite(time) => Some(time),
            Self::Infinite => None,
        }
    }
}

/// Reads a duration, or `infinity`.
pub(crate) fn parse(text: &str) -> Result<Length, String> {
    if text == "infinity" {
        return Ok(Length::Infinite);
    }
    if is_negative(text) {
        return Err("must not be negative".to_owned());
    }
    duration::parse(text).map(Length::Finite).ok_or_else(|| NOT_A_DURATION.to_owned())
}

/// Whether the text is a duration after a minus sign.
fn is_negative(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|rest| parse(rest).is_ok())
}

/// Like [`parse`], but refuses zero.
pub(crate) fn parse_some(text: &str) -> Result<Length, String> {
    match parse(text) {
        Ok(length) if length != Length::Finite(Duration::ZERO) => Ok(length),
        Err(error) if !is_negative(text) => Err(error),
        _ => Err("must be more than 0; `infinity` sets no limit".to_owned()),
    }
}

/// Like [`parse`], for a lease: long enough to be renewed in time, and short enough that a
/// forgotten lease ends.
pub(crate) fn parse_ttl(text: &str) -> Result<Duration, String> {
    match parse(text) {
        Ok(Length::Finite(ttl)) if ttl > Duration::from_millis(LEASE_MS_MAX) => {
            let most = stated(Duration::from_millis(LEASE_MS_MAX));
            Err(format!("a TTL can be at most {most}; renew the lease to keep it longer"))
        }
        Ok(Length::Finite(ttl)) if ttl >= Duration::from_millis(LEASE_MS_MIN) => Ok(ttl),
        Ok(Length::Infinite) => Err("a lease must end at some point, so that another client can \
                                     take the lock"
            .to_owned()),
        Err(error) if !is_negative(text) => Err(error),
        _ => {
            let least = stated(Duration::from_millis(LEASE_MS_MIN));
            Err(format!("a TTL must be at least {least}, to leave time for a renewal"))
        }
    }
}

/// Whole milliseconds, rounded up, so that a length above zero never becomes zero.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_a_duration_or_infinity_and_never_negative() {
        assert_eq!(
            parse("1us").map(|length| matches!(length, Length::Finite(l) if millis(l) == 1)),
            Ok(true)
        );
        assert_eq!(parse("infinity"), Ok(Length::Infinite));
        assert_eq!(parse("10x").unwrap_err(), NOT_A_DURATION);
        assert_eq!(parse("-5").unwrap_err(), "must not be negative");
        for text in ["0", "-1", "-1h30m"] {
            assert!(parse_some(text).unwrap_err().contains("more than 0"), "{text}");
            assert!(parse_ttl(text).unwrap_err().contains("at least 1s"), "{text}");
        }
        assert_eq!(parse_some("-x").unwrap_err(), NOT_A_DURATION);
    }
}
