//! Converts RFC 3339 times to ages and clock times for users.

use std::cell::Cell;
use std::time::Duration;

use canal_text::time;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::cli::short;
use crate::sys::clock;

/// The moment from which ages are computed, and the time zone of clock times.
#[derive(Clone, Debug)]
pub(crate) struct Now {
    at: Timestamp,
    zone: TimeZone,
    /// See [`Self::good_for`].
    good_for: Cell<Option<Duration>>,
}

impl Now {
    /// The present moment, in the time zone of this process.
    pub(crate) fn here() -> Self {
        Self { at: Timestamp::now(), zone: time::zone_here(), good_for: Cell::default() }
    }

    /// How long ago that was; `?` if the text is not a time, zero for a time in the future.
    pub(crate) fn age(&self, since: &str) -> String {
        let Ok(since) = since.parse::<Timestamp>() else { return "?".to_owned() };
        let age = Duration::try_from(self.at.duration_since(since)).unwrap_or_default();
        self.changes_in(until_next(age));
        short(age)
    }

    /// About how long ago that was, in one unit below an hour: `42s`, `3m`, `2h05m`; `?` if the
    /// text is not a time.
    pub(crate) fn about(&self, since: &str) -> String {
        match self.passed(since).map(|passed| passed.as_secs()) {
            Some(passed @ 60..3_600) => format!("{}m", passed / 60),
            _ => self.age(since),
        }
    }

    /// This moment in the format of a log: `2026-11-20T14:05:23+01:00`.
    pub(crate) fn stamp(&self) -> String {
        let here = self.at.to_zoned(self.zone.clone());
        here.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }

    /// Records that the text will change after this time.
    pub(crate) fn changes_in(&self, time: Duration) {
        let least = self.good_for.get().map_or(time, |before| before.min(time));
        self.good_for.set(Some(least));
    }

    /// How long the text that was made with this moment stays correct; `None` if it never changes.
    pub(crate) fn good_for(&self) -> Option<Duration> {
        self.good_for.get()
    }

    /// How long ago that was, as a phrase: `3m12s ago`, `just now`.
    pub(crate) fn ago(&self, since: &str) -> String {
        match self.passed(since) {
            Some(passed) if passed < Duration::from_secs(1) => {
                self.changes_in(until_next(passed));
                "just now".to_owned()
            }
            _ => format!("{} ago", self.age(since)),
        }
    }

    /// How long ago that was, and when: `3m12s ago, at 14:02:11`.
    pub(crate) fn when(&self, at: &str) -> String {
        format!("{}, at {}", self.ago(at), self.clock(at))
    }

    /// How long ago that was; `None` if the text is not a time, or a time in the future.
    pub(crate) fn passed(&self, since: &str) -> Option<Duration> {
        self.at.duration_since(since.parse().ok()?).try_into().ok()
    }

    /// The rest of a time that began at `since`, `, 6m47s left`, or how long it has been over,
    /// ` exceeded by 3m12s`; `None` if the text is not a time.
    pub(crate) fn left(&self, since: &str, whole: Duration) -> Option<String> {
        let since: Timestamp = since.parse().ok()?;
        let passed = Duration::try_from(self.at.duration_since(since)).unwrap_or_default();
        let (left, over) = (whole.saturating_sub(passed), passed.saturating_sub(whole));
        Some(if left.is_zero() {
            self.changes_in(until_next(over));
            format!(" exceeded by {}", short(over))
        } else {
            self.changes_in(until_less(left));
            format!(", {} left", short(left))
        })
    }

    /// When that was, and how long ago: `since 14:02:11 (3m12s)`.
    pub(crate) fn since(&self, since: &str) -> String {
        format!("since {} ({})", self.clock(since), self.age(since))
    }

    /// When that was: `14:02:11` today, `Nov 19 14:02` this year, otherwise `2025-11-19`.
    pub(crate) fn clock(&self, since: &str) -> String {
        let Ok(since) = since.parse::<Timestamp>() else { return "?".to_owned() };
        time::clock(since, self.at, &self.zone)
    }
}

/// A time of CLOCK_BOOTTIME in milliseconds, as [`Now::clock`] shows it.
pub(crate) fn clock_of(at: u64) -> String {
    time::clock_here(clock::unix_of(at))
}

/// A time of CLOCK_BOOTTIME in milliseconds, in RFC 3339 and UTC.
pub(crate) fn time_of(at: u64) -> String {
    time::utc(clock::unix_of(at))
}

/// The unit, in seconds, of the text that [`short`] makes of this time.
fn unit(time: Duration) -> u64 {
    match time.as_secs() {
        0..3_600 => 1,
        3_600..86_400 => 60,
        _ => 3_600,
    }
}

/// When the text that [`short`] makes of a remaining time changes next.
fn until_less(left: Duration) -> Duration {
    let shown = Duration::from_secs(left.as_secs() / unit(left) * unit(left));
    left - shown + Duration::from_nanos(1)
}

/// When the text that [`short`] makes of an age changes next.
fn until_next(age: Duration) -> Duration {
    Duration::from_secs((age.as_secs() / unit(age) + 1) * unit(age)) - age
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A fixed moment.
    pub(crate) fn at(text: &str) -> Now {
        Now { at: text.parse().unwrap(), zone: TimeZone::UTC, good_for: Cell::default() }
    }

    #[test]
    fn an_age_is_good_until_another_one_is_shown() {
        for ms in [0, 1, 999, 59_500, 3_599_999, 3_600_000, 86_399_999, 86_400_000, 400_000_000] {
            let age = Duration::from_millis(ms);
            let next = age + until_next(age);
            assert_eq!(short(next - Duration::from_millis(1)), short(age), "{age:?}");
            assert_ne!(short(next), short(age), "{age:?}");
        }
        for ms in [1, 999, 59_500, 3_600_000, 3_600_001, 86_400_000, 400_000_000] {
            let left = Duration::from_millis(ms);
            let next = left.saturating_sub(until_less(left));
            assert_eq!(short(next + Duration::from_nanos(1)), short(left), "{left:?}");
            assert!(next.is_zero() || short(next) != short(left), "{left:?}");
        }
        let now = at("2026-11-20T14:05:23.500Z");
        now.clock("2026-11-20T14:02:11Z");
        assert_eq!(now.good_for(), None, "a time of day stays as it is");
        now.age("2026-11-20T12:05:23.500Z");
        assert_eq!(now.good_for(), Some(Duration::from_secs(60)));
        now.ago("2026-11-20T14:02:11.100Z");
        assert_eq!(now.good_for(), Some(Duration::from_millis(600)));
    }

    #[test]
    fn for_minutes_no_seconds_are_told_where_it_is_about() {
        let now = at("2026-11-20T14:05:23.500Z");
        for (since, about) in [
            ("2026-11-20T14:04:24Z", "59s"),
            ("2026-11-20T14:02:11Z", "3m"),
            ("2026-11-20T13:05:24Z", "59m"),
            ("2026-11-20T12:00:00Z", "2h05m"),
            ("nonsense", "?"),
        ] {
            assert_eq!(now.about(since), about);
        }
        assert_eq!(now.stamp(), "2026-11-20T14:05:23+00:00");
    }

    #[test]
    fn what_is_left_of_a_time_or_since_when_it_is_over() {
        let now = at("2026-11-20T14:05:23.500Z");
        let left = |since: &str| now.left(since, Duration::from_secs(600));
        let some = |text: &str| Some(format!(", {text} left"));
        let over = |text: &str| Some(format!(" exceeded by {text}"));
        assert_eq!(left("2026-11-20T14:02:11Z"), some("6m47s"));
        assert_eq!(now.good_for(), Some(Duration::from_nanos(500_000_001)));
        assert_eq!(left("2026-11-20T13:55:23.500Z"), over("0s"));
        assert_eq!(left("2026-11-20T13:52:11.100Z"), over("3m12s"));
        assert_eq!(left("2026-11-20T14:06:00Z"), some("10m00s"), "another host is ahead");
        assert_eq!(left("nonsense"), None);
        assert!(now.left("2026-11-20T14:02:11Z", Duration::MAX).is_some());
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
