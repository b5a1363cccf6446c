//! Lengths of time on the command line.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

pub(crate) use crate::duration_text::{short, stated};

/// A length of time as `--wait` and its like take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// So long.
    Finite(Duration),
    /// Without end.
    Infinite,
}

/// Reads `10`, `0.5`, `500ms`, `10m`, `1h30m`, `2d` or `infinity`; a bare number means seconds.
pub(crate) fn parse(text: &str) -> Result<Length, String> {
    let expected = || "not a duration; one looks like 10, 0.5, 500ms or 1h30m".to_owned();
    if text == "infinity" {
        return Ok(Length::Infinite);
    }
    if is_negative(text) {
        return Err("must not be negative".to_owned());
    }
    // jiff would also accept ISO 8601 and `3 days ago`; canal does not.
    let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b' '));
    if !plain || !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(expected());
    }
    let bare = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let zero = if text.starts_with('.') { "0" } else { "" };
    let unit = if bare { "s" } else { "" };
    let span: Span = format!("{zero}{text}{unit}").parse().map_err(|_| expected())?;
    let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| expected())?;
    Duration::try_from(length).map(Length::Finite).map_err(|_| expected())
}

/// Whether it is a duration but for the sign before it.
fn is_negative(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|rest| parse(rest).is_ok())
}

/// As [`parse`], and more than nothing.
pub(crate) fn parse_some(text: &str) -> Result<Length, String> {
    match parse(text) {
        Ok(length) if length != Length::Finite(Duration::ZERO) => Ok(length),
        Err(error) if !is_negative(text) => Err(error),
        _ => Err("must be more than 0; `infinity` is without end".to_owned()),
    }
}

/// The shortest TTL of a lease; the daemon's.
const TTL_MIN: Duration = Duration::from_secs(1);

/// The longest TTL of a lease; the daemon's.
const TTL_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// As [`parse`], for a lease: long enough to be renewed in time, and short enough that a forgotten
/// lease ends.
pub(crate) fn parse_ttl(text: &str) -> Result<Duration, String> {
    match parse(text) {
        Ok(Length::Finite(ttl)) if ttl > TTL_MAX => {
            Err("a lease lives for at most 30 days: renew one that is needed for longer".to_owned())
        }
        Ok(Length::Finite(ttl)) if ttl >= TTL_MIN => Ok(ttl),
        Ok(Length::Infinite) => Err("a lease without end would never be taken over".to_owned()),
        Err(error) if !is_negative(text) => Err(error),
        _ => Err("a lease lives for at least 1 second: it takes time to renew it".to_owned()),
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
    fn durations_are_read() {
        for (text, ms) in [
            ("0", 0),
            ("10", 10_000),
            ("0.5", 500),
            (".5", 500),
            ("500ms", 500),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("2d", 172_800_000),
            ("1w", 604_800_000),
            ("90s", 90_000),
            ("1h 30m", 5_400_000),
            ("1us", 1),
        ] {
            let Ok(Length::Finite(length)) = parse(text) else { panic!("{text}") };
            assert_eq!(millis(length), ms, "{text}");
        }
        assert_eq!(parse("infinity"), Ok(Length::Infinite));
    }

    #[test]
    fn an_invalid_duration_is_an_error_with_an_example() {
        for text in ["", "x", "10x", "inf", "nan", "1e3", "PT5M", "1mo", "1y", ".", "1..2"] {
            assert!(parse(text).unwrap_err().contains("one looks like 10, 0.5"), "{text}");
        }
        assert_eq!(parse("-5").unwrap_err(), "must not be negative");
        assert!(parse("99999999999999999999").is_err());
        for text in ["0", "-1", "-1h30m"] {
            assert!(parse_some(text).unwrap_err().contains("more than 0"), "{text}");
            assert!(parse_ttl(text).unwrap_err().contains("at least 1 second"), "{text}");
        }
        assert!(parse_some("-x").unwrap_err().contains("not a duration"));
    }
}
