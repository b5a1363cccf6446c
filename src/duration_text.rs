//! Lengths of time as people read them, the same in every message, log line and report.

use std::time::Duration;

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

/// A length of time that somebody chose, for people; up to an hour it is exact: `200ms`, `1.5s`,
/// `1m05.6s`, `10m00s`. Whole days have no hours: `30d`.
pub(crate) fn stated(length: Duration) -> String {
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

/// As [`stated`], of milliseconds.
pub(crate) fn stated_ms(ms: u64) -> String {
    stated(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

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
