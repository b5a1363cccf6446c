//! Lengths of time on the command line and in messages.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

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
    if text.starts_with('-') {
        return Err("must not be negative".to_owned());
    }
    // ISO 8601 and `3 days ago` are jiff's, not ours.
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

/// As [`parse`], and more than nothing.
pub(crate) fn parse_some(text: &str) -> Result<Length, String> {
    match parse(text)? {
        Length::Finite(Duration::ZERO) => {
            Err("must be more than 0; `infinity` is without end".to_owned())
        }
        length => Ok(length),
    }
}

/// The shortest TTL of a lease; the daemon's.
const TTL_MIN: Duration = Duration::from_secs(1);

/// The longest TTL of a lease; the daemon's.
const TTL_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// As [`parse`], for a lease: neither too short to be renewed in time, nor so long that a forgotten
/// one is in the way for ever.
pub(crate) fn parse_ttl(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Length::Finite(ttl) if ttl < TTL_MIN => {
            Err("a lease lives for at least 1 second: it takes time to renew it".to_owned())
        }
        Length::Finite(ttl) if ttl > TTL_MAX => {
            Err("a lease lives for at most 30 days: renew one that is needed for longer".to_owned())
        }
        Length::Finite(ttl) => Ok(ttl),
        Length::Infinite => Err("a lease without end would never be taken over".to_owned()),
    }
}

/// Whole milliseconds, rounded up: what is not nothing stays something.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A length of time for people, at most two units: `0s`, `59s`, `3m12s`, `2h05m`, `4d03h`.
pub(crate) fn short(length: Duration) -> String {
    let seconds = length.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// As [`short`], with fractions of what is less than a minute: `200ms`, `1.5s`, `10m00s`.
pub(crate) fn stated(length: Duration) -> String {
    if length < Duration::from_secs(60) { format!("{length:?}") } else { short(length) }
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
    fn what_is_no_duration_says_what_one_looks_like() {
        for text in ["", "x", "10x", "inf", "nan", "1e3", "PT5M", "1mo", "1y", ".", "1..2"] {
            assert!(parse(text).unwrap_err().contains("one looks like 10, 0.5"), "{text}");
        }
        assert_eq!(parse("-5").unwrap_err(), "must not be negative");
        assert!(parse("99999999999999999999").is_err());
        assert!(parse_some("0").unwrap_err().contains("more than 0"));
    }

    #[test]
    fn lengths_have_two_units_at_most() {
        for (seconds, shown) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m00s"),
            (192, "3m12s"),
            (3_599, "59m59s"),
            (7_500, "2h05m"),
            (356_400, "4d03h"),
        ] {
            assert_eq!(short(Duration::from_secs(seconds)), shown);
        }
        let stated = [200, 1_500, 10_000, 600_000].map(|ms| stated(Duration::from_millis(ms)));
        assert_eq!(stated, ["200ms", "1.5s", "10s", "10m00s"]);
    }
}
