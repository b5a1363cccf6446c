//! Texts in replies, formatted while they are written.

use std::fmt;

use serde::{Serialize, Serializer};

use canal_core::{FrameId, Owner, UnixMillis};

/// A text of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text<'a> {
    /// An existing text.
    Itself(&'a str),
    /// The name of the session with this outermost frame.
    Session(FrameId),
    /// The name of a frame.
    Frame(FrameId),
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
            _ => serializer.collect_str(self),
        }
    }
}

/// The pid of an owner's process. 0 for a lease or a jobserver.
pub(crate) fn pid_of(owner: &Owner) -> u32 {
    match owner {
        Owner::Process(process) => process.pid,
        Owner::Lease(_) | Owner::Jobserver(_) => 0,
    }
}

/// An owner in messages that name no command.
pub(crate) fn owner_words(owner: &Owner) -> String {
    match owner {
        Owner::Process(process) => format!("pid {}", process.pid),
        Owner::Lease(_) => "a lease".to_owned(),
        Owner::Jobserver(_) => "a build job".to_owned(),
    }
}

/// A time as RFC 3339, UTC.
pub(crate) fn time(at: UnixMillis) -> String {
    let at = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(at).unwrap_or(jiff::Timestamp::MAX).to_string()
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
    fn the_writer_and_display_give_the_same_text() {
        let frames = [0, 1, 9, 10, u64::MAX].map(FrameId);
        let names = frames.into_iter().flat_map(|id| [Text::Session(id), Text::Frame(id)]);
        for text in names.chain([Text::Itself("a \"b\""), Text::Time(UnixMillis(1))]) {
            let written = serde_json::to_value(text).unwrap();
            assert_eq!(written, serde_json::Value::String(text.to_string()));
        }
        assert_eq!(Text::Session(FrameId(u64::MAX)).to_string(), format!("s{}", u64::MAX));
        assert_eq!(Text::Frame(FrameId(7)).to_string(), "f7");
    }

    #[test]
    fn a_time_shows_its_fraction_only_if_it_has_one() {
        for (at, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (1, "1970-01-01T00:00:00.001Z"),
            (951_782_400_120, "2000-02-29T00:00:00.12Z"),
            (253_370_764_799_999, "9998-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Text::Time(UnixMillis(at)).to_string(), expected);
        }
    }
}
