//! Texts of replies, made as they are written.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::core::{FrameId, Owner, UnixMillis};

/// A text of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text<'a> {
    /// As it stands somewhere.
    Itself(&'a str),
    /// The name of the session with this outermost frame.
    Session(FrameId),
    /// The name of a frame.
    Frame(FrameId),
    /// A time.
    Time(UnixMillis),
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Itself(text) => f.write_str(text),
            Self::Session(frame) => write!(f, "s{frame}"),
            Self::Frame(frame) => write!(f, "f{frame}"),
            Self::Time(at) => f.write_str(&time(*at)),
        }
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Itself(text) => serializer.serialize_str(text),
            Self::Session(frame) => {
                serializer.serialize_str(name(b's', *frame, &mut [0; NAME_BYTES]))
            }
            Self::Frame(frame) => {
                serializer.serialize_str(name(b'f', *frame, &mut [0; NAME_BYTES]))
            }
            Self::Time(at) => match time_written(*at, &mut [0; TIME_BYTES]) {
                Some(text) => serializer.serialize_str(text),
                None => serializer.serialize_str(&time(*at)),
            },
        }
    }
}

/// How many bytes a time has, with its fraction.
const TIME_BYTES: usize = "2026-11-21T05:14:05.123Z".len();

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A time as [`time`] has it, without a block of memory and the calendar of the whole world; `None`
/// from the year 9999 on, at whose end that stops.
fn time_written(at: UnixMillis, room: &mut [u8; TIME_BYTES]) -> Option<&str> {
    let (year, month, day) = date(at.0 / DAY_MS)?;
    let ms = at.0 % DAY_MS;
    let (seconds, fraction) = (ms / 1000, ms % 1000);
    room.copy_from_slice(b"0000-00-00T00:00:00.000Z");
    let parts = [
        (0, year / 100),
        (2, year % 100),
        (5, month),
        (8, day),
        (11, seconds / 3600),
        (14, seconds / 60 % 60),
        (17, seconds % 60),
        // The last of its digits is between two.
        (20, fraction / 10),
        (21, fraction % 100),
    ];
    for (at, number) in parts {
        room[at] = b'0' + (number / 10) as u8;
        room[at + 1] = b'0' + (number % 10) as u8;
    }
    // The zeros at the end of a fraction are not said, nor is a fraction of nothing else.
    let mut end = TIME_BYTES - 1;
    while room[end - 1] == b'0' && end > 20 {
        end -= 1;
    }
    if room[end - 1] == b'.' {
        end -= 1;
    }
    room[end] = b'Z';
    std::str::from_utf8(&room[..=end]).ok()
}

/// Year, month and day of a day since 1970-01-01, by counting from a March 1, so that the leap day
/// is the last of its year.
fn date(days: u64) -> Option<(u64, u64, u64)> {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // From 0000-03-01.
    let days = days.checked_add(719_468)?;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    (year < 9999).then_some((year, month, day))
}

/// How many bytes the longest name has.
const NAME_BYTES: usize = 21;

/// A letter and a number.
fn name(letter: u8, frame: FrameId, room: &mut [u8; NAME_BYTES]) -> &str {
    let (mut rest, mut at) = (frame.0, NAME_BYTES);
    // From its end on, so that nothing has to be moved.
    while rest > 0 || at == NAME_BYTES {
        at -= 1;
        room[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    at -= 1;
    room[at] = letter;
    std::str::from_utf8(&room[at..]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(time(UnixMillis(0)), "1970-01-01T00:00:00Z");
        assert_eq!(time(UnixMillis(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
        assert!(time(UnixMillis(u64::MAX)).starts_with("9999-12-30"));
    }

    #[test]
    fn what_is_written_is_what_is_displayed() {
        let frames = [0, 1, 9, 10, u64::MAX].map(FrameId);
        let names = frames.into_iter().flat_map(|id| [Text::Session(id), Text::Frame(id)]);
        for text in names.chain([Text::Itself("a \"b\""), Text::Time(UnixMillis(1))]) {
            let written = serde_json::to_value(text).unwrap();
            assert_eq!(written, serde_json::Value::String(text.to_string()));
        }
        assert_eq!(Text::Session(FrameId(u64::MAX)).to_string(), format!("s{}", u64::MAX));
        assert_eq!(Text::Frame(FrameId(7)).to_string(), "f7");
    }

    fn written(at: u64) -> Option<String> {
        time_written(UnixMillis(at), &mut [0; TIME_BYTES]).map(str::to_owned)
    }

    #[test]
    fn a_time_is_written_as_the_calendar_has_it() {
        const LAST: u64 = 253_370_764_799_999;
        for day in 0..LAST / DAY_MS {
            let ms = day * 7919 % 1000 * (day % 86_400);
            let at = day * DAY_MS + ms;
            if day % 11 == 0 || day < 60_000 {
                assert_eq!(written(at).unwrap(), time(UnixMillis(at)), "{at}");
            }
        }
        for ms in 0..2000 {
            assert_eq!(written(ms).unwrap(), time(UnixMillis(ms)));
        }
        assert_eq!(written(LAST).unwrap(), "9998-12-31T23:59:59.999Z");
        assert_eq!(written(LAST + 1), None);
        assert_eq!(written(u64::MAX), None);
    }
}

/// The number of an owner's process; 0 if it has none here.
pub(crate) fn pid_of(owner: &Owner) -> u32 {
    match owner {
        Owner::Process(process) => process.pid,
        Owner::Lease(_) => 0,
    }
}

/// A time as RFC 3339, UTC.
pub(crate) fn time(at: UnixMillis) -> String {
    let at = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(at).unwrap_or(jiff::Timestamp::MAX).to_string()
}
