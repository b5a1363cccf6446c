//! Texts of replies, made as they are written.

use std::fmt;

use serde::{Serialize, Serializer};

use super::shown::time;
use crate::core::{FrameId, UnixMillis};

/// A text of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text<'a> {
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
            Self::Time(at) => serializer.serialize_str(&time(*at)),
        }
    }
}

/// How many bytes the longest name has.
const NAME_BYTES: usize = 21;

/// A letter and a number.
fn name(letter: u8, frame: FrameId, room: &mut [u8; NAME_BYTES]) -> &str {
    let mut number = itoa::Buffer::new();
    let digits = number.format(frame.0).as_bytes();
    room[0] = letter;
    room[1..=digits.len()].copy_from_slice(digits);
    std::str::from_utf8(&room[..=digits.len()]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
