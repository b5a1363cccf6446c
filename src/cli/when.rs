//! Times: RFC 3339 in, ages and clock times for people out.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::duration::short;

/// The moment to which ages relate, and the time zone in which clock times are shown.
#[derive(Clone, Debug)]
pub(crate) struct Now {
    at: Timestamp,
    zone: TimeZone,
}

impl Now {
    /// Now, in the time zone of this process.
    pub(crate) fn here() -> Self {
        Self { at: Timestamp::now(), zone: TimeZone::system() }
    }

    /// How long ago that was; `?` for what is no time, nothing for the future.
    pub(crate) fn age(&self, since: &str) -> String {
        since.parse::<Timestamp>().map_or_else(
            |_| "?".to_owned(),
            |since| short(Duration::try_from(self.at.duration_since(since)).unwrap_or_default()),
        )
    }

    /// How long ago that was, as a phrase: `3m12s ago`, `just now`.
    pub(crate) fn ago(&self, since: &str) -> String {
        match self.passed(since) {
            Some(passed) if passed < Duration::from_secs(1) => "just now".to_owned(),
            _ => format!("{} ago", self.age(since)),
        }
    }

    /// How long ago that was; `None` for what is no time or is to come.
    pub(crate) fn passed(&self, since: &str) -> Option<Duration> {
        let since: Timestamp = since.parse().ok()?;
        Duration::try_from(self.at.duration_since(since)).ok()
    }

    /// When that was: `14:02:11` today, `Nov 19 14:02` this year, else `2025-11-19`.
    pub(crate) fn clock(&self, since: &str) -> String {
        let Ok(since) = since.parse::<Timestamp>() else { return "?".to_owned() };
        let (since, now) = (since.to_zoned(self.zone.clone()), self.at.to_zoned(self.zone.clone()));
        let format = if since.date() == now.date() {
            "%H:%M:%S"
        } else if since.year() == now.year() {
            "%b %e %H:%M"
        } else {
            "%Y-%m-%d"
        };
        since.strftime(format).to_string()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A fixed moment.
    pub(crate) fn at(text: &str) -> Now {
        Now { at: text.parse().unwrap(), zone: TimeZone::UTC }
    }

    #[test]
    fn what_has_just_happened_is_not_0s_ago() {
        let now = at("2026-11-20T14:05:23.500Z");
        assert_eq!(now.ago("2026-11-20T14:05:22.501Z"), "just now");
        assert_eq!(now.ago("2026-11-20T14:05:22.500Z"), "1s ago");
    }

    #[test]
    fn ages_and_clock_times_are_for_people() {
        let now = at("2026-11-20T14:05:23.500Z");
        for (since, age, clock) in [
            ("2026-11-20T14:02:11.100Z", "3m12s", "14:02:11"),
            ("2026-11-19T23:59:59Z", "14h05m", "Nov 19 23:59"),
            ("2026-02-03T14:05:23Z", "290d00h", "Feb  3 14:05"),
            ("2025-11-20T14:05:23Z", "365d00h", "2025-11-20"),
            ("2026-11-20T14:05:24Z", "0s", "14:05:24"),
            ("2026-11-20T15:05:23+01:00", "0s", "14:05:23"),
            ("nonsense", "?", "?"),
        ] {
            assert_eq!(
                (now.age(since).as_str(), now.clock(since).as_str()),
                (age, clock),
                "{since}"
            );
        }
    }
}
