//! Points in time as messages state them.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The time zone of the machine, if `TZ` does not name another.
const LOCALTIME: &str = "/etc/localtime";

fn of_ms(at_ms: u64) -> Timestamp {
    let at = i64::try_from(at_ms).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(at).unwrap_or(Timestamp::MAX)
}

/// A time in milliseconds since 1970 UTC, as RFC 3339 UTC.
pub fn utc(at_ms: u64) -> String {
    of_ms(at_ms).to_string()
}

/// The time zone of this process.
pub fn zone_here() -> TimeZone {
    if std::env::var_os("TZ").is_some() {
        return TimeZone::system();
    }
    // Reads the file itself. `TimeZone::system` searches the whole time zone database for its name,
    // which takes half of the system calls of a `canal status`.
    let file = std::fs::read(LOCALTIME).ok();
    file.and_then(|zone| TimeZone::tzif("", &zone).ok()).unwrap_or_else(TimeZone::system)
}

/// A time, seen from another one: `14:02:11` on its day, `Nov 19 14:02` in its year, otherwise
/// `2025-11-19`.
pub fn clock(at: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let (at, now) = (at.to_zoned(zone.clone()), now.to_zoned(zone.clone()));
    let format = if at.date() == now.date() {
        "%H:%M:%S"
    } else if at.year() == now.year() {
        "%b %e %H:%M"
    } else {
        "%Y-%m-%d"
    };
    at.strftime(format).to_string()
}

/// A time in milliseconds since 1970 UTC, seen from now and in the time zone of this process.
pub fn clock_here(at_ms: u64) -> String {
    clock(of_ms(at_ms), Timestamp::now(), &zone_here())
}
