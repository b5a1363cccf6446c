//! Durations as people write and read them, the same on the command line, in the configuration, and
//! in every message, log line and report.

use std::time::Duration;

#[cfg(feature = "durations")]
use jiff::{Span, SpanRelativeTo};

/// The end of an error message about a text that [`parse`] refuses.
pub const NOT_A_DURATION: &str =
    "not a duration; one looks like 90, 0.5, 500ms, 1h30m, 30d or PT5M";

/// The same for a text whose number is too large. The limit is that of [`Span`].
#[cfg(feature = "durations")]
const TOO_LONG: &str = "too long; the longest duration is 7304484d";

/// Reads `90`, `0.5`, `500ms`, `1h 30m`, `2d`, `1w` or `PT5M`. A bare number means seconds, and a
/// day has 24 hours. The error is the end of a message.
#[cfg(feature = "durations")]
pub fn parse(text: &str) -> Result<Duration, &'static str> {
    span(text).ok_or_else(|| {
        // Whether it is a duration with smaller numbers: the library's error does not say so.
        let small = text.chars().map(|c| if c.is_ascii_digit() { '1' } else { c });
        let mut small: Vec<char> = small.collect();
        small.dedup_by(|a, b| (*a, *b) == ('1', '1'));
        let is_too_long = span(&String::from_iter(small)).is_some();
        if is_too_long { TOO_LONG } else { NOT_A_DURATION }
    })
}

#[cfg(feature = "durations")]
fn span(text: &str) -> Option<Duration> {
    let bare = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let zero = if text.starts_with('.') { "0" } else { "" };
    let unit = if bare { "s" } else { "" };
    let span: Span = format!("{zero}{text}{unit}").parse().ok()?;
    let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(length).ok()
}

/// Reads a duration like [`parse`]; the error names the text.
#[cfg(feature = "durations")]
pub fn read(text: &str) -> Result<Duration, String> {
    parse(text).map_err(|why| format!("`{text}` is {why}"))
}

/// A duration as text for people, with at most two units: `0s`, `59s`, `3m12s`, `2h05m`, `4d03h`.
pub fn short(length: Duration) -> String {
    let seconds = length.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// A duration that a person chose, as text. Up to an hour, the text is exact: `200ms`, `1.5s`,
/// `1m05.6s`, `10m00s`. Whole days have no hours: `30d`.
pub fn stated(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0..60 => format!("{length:?}"),
        60..3600 if length.subsec_millis() > 0 => {
            let rest = (length - Duration::from_secs(seconds / 60 * 60)).as_secs_f64();
            let rest = format!("{rest:06.3}");
            format!("{}m{}s", seconds / 60, rest.trim_end_matches('0'))
        }
        _ if seconds.is_multiple_of(86_400) => format!("{}d", seconds / 86_400),
        _ => short(length),
    }
}

/// The whole milliseconds of a duration.
pub fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// Like [`milliseconds`], but rounded up, so that a short wait does not become none.
pub fn milliseconds_up(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Like [`stated`], for a number of milliseconds.
pub fn stated_ms(ms: u64) -> String {
    stated(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, ms) in [
            ("0", 0),
            ("90", 90_000),
            ("0.5", 500),
            (".5", 500),
            ("500ms", 500),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("1h 30m", 5_400_000),
            ("5 minutes", 300_000),
            ("PT5M", 300_000),
            ("P1DT12H", 129_600_000),
            ("2d", 172_800_000),
            ("1w", 604_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "x", "10x", "inf", "nan", "1e3", "1mo", "P1Y", "1y", ".", "1..2", "soon"] {
            assert_eq!(parse(text), Err(NOT_A_DURATION), "{text}");
        }
        for text in ["-5", "-5m", "-PT5M", "5m ago", "-99999999999999999999"] {
            assert_eq!(parse(text), Err(NOT_A_DURATION), "{text}");
        }
        assert_eq!(parse("7304484d"), Ok(Duration::from_secs(7_304_484 * 86_400)));
        for text in ["7304485d", "1000000000d", "99999999999999999999", "PT99999999999999999999H"] {
            assert_eq!(parse(text), Err(TOO_LONG), "{text}");
        }
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
        let stated = [200, 1_500, 10_000, 65_600, 600_000, 7_500_001].map(stated_ms);
        assert_eq!(stated, ["200ms", "1.5s", "10s", "1m05.6s", "10m00s", "2h05m"]);
        assert_eq!(stated_ms(30 * 86_400_000), "30d");
        assert_eq!(stated_ms(25 * 3_600_000), "1d01h");
    }
}
